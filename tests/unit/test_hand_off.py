"""The rules of the hand-off: its effects, their order, and the reaction to each answer."""

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.producer_problem import ProducerRefused
from thresher.kafka.refusal import Refusal
from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.hand_off.member import MemberThread, Rejoin
from thresher.queue.hand_off.polled_records import Batch, PolledRecords, Span
from thresher.queue.hand_off.protocol import (
    BackOff,
    Begin,
    Commit,
    CommitOffsets,
    Deliver,
    Effect,
    Flush,
    NoMember,
    Outcome,
    ReadCommitted,
    Refused,
    ReplaceProducer,
    SendOffsets,
    Steps,
    Uncertain,
    Verdict,
    WriteStarts,
    at_least_once,
    exactly_once,
    judge,
)
from thresher.queue.hand_off.starts import judged, records_of
from thresher.queue.metrics import Figures
from thresher.queue.problem import DeadLetterRefused
from thresher.queue.wire.marker import Marker, MarkerType, MessageId, decode
from thresher.queue.wire.record import DEAD_REASON, Record, record_of

ONE_TRY = [Begin, WriteStarts, Flush, SendOffsets, Commit]
NO_ANSWER = Uncertain("no answer")
TOO_LARGE = Refused("too large")
REMOVED = NoMember("removed")


def record(partition: int, offset: int) -> Record:
    place = MessageId(partition, offset)
    return Record(message_id=place, payload=b"p", headers=(), delivery_count=1, origin_id=place, enqueued_at_ms=1)


def batch_of(*offsets: int, begin: int = 0, end: int = 10) -> Batch:
    """Return a batch of partition 0."""
    return Batch(records=tuple(record(0, offset) for offset in offsets), spans={0: Span(begin, end)})


def offset(value: int, name: str = "", partition: int = 0) -> dict[int, GroupOffset]:
    return {partition: GroupOffset(topic="t", partition=partition, offset=value, metadata=name)}


def names() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"name-{next(numbers)}"


class Run:
    """Runs a hand-off. Each kind of effect gets its prepared answers in turn, and then succeeds."""

    def __init__(self, steps: Steps, **answers: list[Any]) -> None:
        self.seen: list[Effect] = []
        self.outcome: Outcome | None = None
        answer: Any = None
        try:
            while len(self.seen) < 500:
                effect = steps.send(answer)
                self.seen.append(effect)
                prepared = answers.get(type(effect).__name__)
                answer = prepared.pop(0) if prepared else None
        except StopIteration as end:
            self.outcome = end.value
        assert self.outcome is not None, "the hand-off does not end"
        assert not any(answers.values()), "every prepared answer was needed"

    @property
    def kinds(self) -> list[type[Effect]]:
        return [type(effect) for effect in self.seen]

    @property
    def delivered(self) -> list[Batch]:
        return [effect.batch for effect in self.seen if isinstance(effect, Deliver)]


def run_refusing(steps: Steps, *offsets: int) -> list[Effect]:
    """Run a hand-off and return its effects. The broker refuses the Starts of these offsets, and no dead letter."""
    seen: list[Effect] = []
    written: Batch | None = None
    answer: Any = None
    try:
        for _ in range(500):
            effect = steps.send(answer)
            seen.append(effect)
            answer = None
            if isinstance(effect, WriteStarts):
                written = effect.batch
            elif isinstance(effect, Flush) and written is not None and written.dead_reason is None:
                answer = TOO_LARGE if any(each.message_id.offset in offsets for each in written.records) else None
    except StopIteration:
        return seen
    raise AssertionError("the hand-off does not end")


def fates(seen: list[Effect]) -> dict[int, str]:
    """Return for each offset, in order, whether the record was delivered or became a dead letter."""
    return {
        each.message_id.offset: "dead" if effect.batch.dead_reason else "delivered"
        for effect in seen
        if isinstance(effect, Deliver)
        for each in effect.batch.records
    }


# One try


def test_a_batch_is_delivered_after_its_commit() -> None:
    run = Run(exactly_once(batch_of(1, 2), names()))
    assert run.kinds == [*ONE_TRY, Deliver]
    assert run.outcome is Outcome.DELIVERED
    assert run.delivered == [batch_of(1, 2)]


def test_offsets_go_under_the_transactions_name() -> None:
    run = Run(exactly_once(batch_of(1), names()))
    assert SendOffsets(batch_of(1), "name-1") in run.seen


@pytest.mark.parametrize("step", ["Begin", "WriteStarts", "Flush", "SendOffsets", "Commit"])
def test_a_failed_step_is_the_last_of_its_try(step: str) -> None:
    answers: dict[str, list[Any]] = {step: [NO_ANSWER], "ReadCommitted": [offset(0)]}
    run = Run(exactly_once(batch_of(1), names()), **answers)
    failed = [kind.__name__ for kind in ONE_TRY].index(step) + 1
    assert run.kinds == [*ONE_TRY[:failed], ReplaceProducer, ReadCommitted, BackOff, *ONE_TRY, Deliver]


# The outcome of a transaction


def test_a_batch_whose_commit_is_found_is_delivered() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER], ReadCommitted=[offset(10, "name-1")])
    assert run.kinds == [*ONE_TRY, ReplaceProducer, ReadCommitted, Deliver, BackOff]
    assert run.outcome is Outcome.DELIVERED


def test_a_batch_whose_offsets_did_not_move_is_retried() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER], ReadCommitted=[offset(0, "before")])
    assert run.kinds == [*ONE_TRY, ReplaceProducer, ReadCommitted, BackOff, *ONE_TRY, Deliver]
    assert run.outcome is Outcome.DELIVERED


def test_every_try_has_its_own_name() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER] * 2, ReadCommitted=[offset(0), offset(0)])
    assert [each.name for each in run.seen if isinstance(each, SendOffsets)] == ["name-1", "name-2", "name-3"]


def test_pauses_grow_with_every_failed_try() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER] * 2, ReadCommitted=[offset(0), offset(0)])
    assert [each.tries for each in run.seen if isinstance(each, BackOff)] == [1, 2]


def test_a_successor_with_a_higher_offset_ends_the_hand_off() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER], ReadCommitted=[offset(10, "another")])
    assert run.kinds == [*ONE_TRY, ReplaceProducer, ReadCommitted]
    assert run.outcome is Outcome.GIVEN_UP


def test_a_missing_offset_ends_the_hand_off() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER], ReadCommitted=[{}])
    assert run.outcome is Outcome.GIVEN_UP
    assert not run.delivered


def test_one_offset_with_our_name_confirms_the_commit() -> None:
    spans = {0: Span(0, 5), 1: Span(0, 5)}
    found = offset(5, "ours", 0) | offset(9, "another", 1)
    assert judge(spans, "ours", found) is Verdict.COMMITTED


def test_one_offset_with_another_name_shows_a_successor() -> None:
    spans = {0: Span(0, 5), 1: Span(0, 5)}
    assert judge(spans, "ours", offset(0, "", 0) | offset(9, "another", 1)) is Verdict.TAKEN_BY_ANOTHER


def test_offsets_of_other_partitions_decide_nothing() -> None:
    found = offset(0, "", 0) | offset(9, "another", 1)
    assert judge({0: Span(0, 5)}, "ours", found) is Verdict.NOT_COMMITTED


# Rebalances


def test_a_batch_is_not_tried_again_after_a_rebalance() -> None:
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER], ReadCommitted=[offset(0)], BackOff=[True])
    assert run.kinds == [*ONE_TRY, ReplaceProducer, ReadCommitted, BackOff]
    assert run.outcome is Outcome.GIVEN_UP


def test_a_committed_batch_is_delivered_after_a_rebalance() -> None:
    answers: dict[str, list[Any]] = {"ReadCommitted": [offset(10, "name-1")], "BackOff": [True]}
    run = Run(exactly_once(batch_of(1), names()), Commit=[NO_ANSWER], **answers)
    assert run.outcome is Outcome.DELIVERED
    assert run.delivered == [batch_of(1)]


def test_a_smaller_batch_is_not_tried_after_a_rebalance() -> None:
    run = Run(exactly_once(batch_of(1, 2), names()), Flush=[TOO_LARGE], ReplaceProducer=[True])
    assert run.kinds == [Begin, WriteStarts, Flush, ReplaceProducer]
    assert run.outcome is Outcome.GIVEN_UP


def test_refused_offsets_end_the_transaction_and_the_hand_off() -> None:
    run = Run(exactly_once(batch_of(1), names()), SendOffsets=[REMOVED])
    assert run.kinds == [*ONE_TRY[:-1], ReplaceProducer]
    assert run.outcome is Outcome.GIVEN_UP


def test_the_second_half_is_given_up_after_a_rebalance() -> None:
    answers: dict[str, list[Any]] = {"Commit": [NO_ANSWER], "ReadCommitted": [offset(2, "name-2")], "BackOff": [True]}
    run = Run(exactly_once(batch_of(1, 2), names()), Flush=[TOO_LARGE], **answers)
    assert run.outcome is Outcome.GIVEN_UP
    assert run.delivered == [batch_of(1, end=2)]


# Refused Starts


def test_a_record_refused_alone_becomes_a_dead_letter() -> None:
    seen = run_refusing(exactly_once(batch_of(1), names()), 1)
    assert [type(effect) for effect in seen] == [Begin, WriteStarts, Flush, ReplaceProducer, *ONE_TRY, Deliver]
    assert seen[-1] == Deliver(batch_of(1).dead("too large"))


def test_offsets_pass_a_dead_letter_in_the_same_transaction() -> None:
    dead = batch_of(1).dead("too large")
    seen = run_refusing(exactly_once(batch_of(1), names()), 1)
    assert seen[4:9] == [Begin(), WriteStarts(dead), Flush(), SendOffsets(dead, "name-2"), Commit()]


def test_a_refused_record_is_found_by_halving() -> None:
    seen = run_refusing(exactly_once(batch_of(1, 2, 3, 4, 5), names()), 3)
    assert fates(seen) == {1: "delivered", 2: "delivered", 3: "dead", 4: "delivered", 5: "delivered"}
    assert list(fates(seen)) == [1, 2, 3, 4, 5]


def test_several_refused_records_each_become_dead_letters() -> None:
    seen = run_refusing(exactly_once(batch_of(*range(8)), names()), 0, 5, 7)
    assert [place for place, fate in fates(seen).items() if fate == "dead"] == [0, 5, 7]


def test_nothing_of_a_refused_transaction_is_committed() -> None:
    seen = [type(effect) for effect in run_refusing(exactly_once(batch_of(1, 2), names()), 1, 2)]
    for place, kind in enumerate(seen):
        if kind is Begin and place:
            assert seen[place - 1] in {ReplaceProducer, Deliver}


def test_a_refused_dead_letter_is_written_in_smaller_parts() -> None:
    run = Run(exactly_once(batch_of(1), names()), Flush=[TOO_LARGE] * 5)
    tried = [effect.batch for effect in run.seen if isinstance(effect, WriteStarts)]
    assert [(each.dead_reason, each.part_bytes) for each in tried] == [
        (None, None), ("too large", None), ("too large", 500_000), ("too large", 100_000), ("too large", 10_000),
        ("too large", 0),
    ]  # fmt: skip
    assert run.seen[-1] == Deliver(tried[-1])


def test_only_a_letter_refused_without_its_content_ends_the_consumer() -> None:
    with pytest.raises(DeadLetterRefused, match=r"message 0-1, even without its content"):
        Run(exactly_once(batch_of(1), names()), Flush=[TOO_LARGE] * 6)


# At least once


def test_starts_come_before_offsets_and_both_before_the_delivery() -> None:
    run = Run(at_least_once(batch_of(1)))
    assert run.kinds == [WriteStarts, Flush, CommitOffsets, Deliver]
    assert run.outcome is Outcome.DELIVERED


@pytest.mark.parametrize("step", ["WriteStarts", "Flush", "CommitOffsets"])
def test_at_least_once_repeats_both_steps_after_a_fault(step: str) -> None:
    run = Run(at_least_once(batch_of(1)), **{step: [NO_ANSWER]})
    assert run.kinds[-5:] == [BackOff, WriteStarts, Flush, CommitOffsets, Deliver]
    assert run.delivered == [batch_of(1)]


def test_at_least_once_repeats_nothing_after_a_rebalance() -> None:
    run = Run(at_least_once(batch_of(1)), CommitOffsets=[NO_ANSWER], BackOff=[True])
    assert run.outcome is Outcome.GIVEN_UP
    assert not run.delivered


def test_at_least_once_a_removed_member_delivers_nothing() -> None:
    run = Run(at_least_once(batch_of(1)), CommitOffsets=[REMOVED])
    assert run.kinds == [WriteStarts, Flush, CommitOffsets]
    assert run.outcome is Outcome.GIVEN_UP


def test_at_least_once_finds_a_refused_record_by_halving() -> None:
    seen = run_refusing(at_least_once(batch_of(1, 2, 3)), 2)
    assert fates(seen) == {1: "delivered", 2: "dead", 3: "delivered"}


# After a batch was given up


class GivingUp:
    """A hand-off that gives up every batch."""

    partition = 0

    def steps(self, _: Batch) -> Steps:
        yield from ()
        return Outcome.GIVEN_UP


class Membership:
    """A member that counts its rebalances in `epoch`, and whose polls find nothing more."""

    epoch = 1
    polled_at = 0.0

    def resume(self) -> None: ...

    def poll(self, _: float) -> None: ...


def hand_off(member: Membership, steps: GivingUp) -> None:
    config = configured({"bootstrap-servers": "localhost:1", "message-topic": "m", "marker-topic": "k"})
    unused = cast("Any", None)
    started = cast("Any", ())
    thread = MemberThread(b"q", config, unused, cast("Any", steps), unused, ReceiveBuffer(), started, Figures())
    polled = PolledRecords(most_skipped=1, most_bytes=1_000)
    polled.give(0, 1)
    polled.add(record(0, 1))
    thread.run_once(cast("Any", member), polled)


def test_a_batch_given_up_without_a_rebalance_ends_the_membership() -> None:
    with pytest.raises(Rejoin):
        hand_off(Membership(), GivingUp())


def test_a_batch_given_up_by_a_rebalance_keeps_the_membership() -> None:
    member = Membership()

    class Rebalanced(GivingUp):
        def steps(self, batch: Batch) -> Steps:
            member.epoch += 1
            return super().steps(batch)

    before = member.epoch
    hand_off(member, Rebalanced())
    assert member.epoch == before + 1, "a batch was handed off"


# Starts and answers as records


def nowhere(_: bytes) -> int:
    raise AssertionError("one record needs no chosen partition")


CONFIG: QueueConfig = configured({"bootstrap-servers": "localhost:1", "message-topic": "m", "marker-topic": "k"})


def test_a_start_holds_the_whole_message() -> None:
    told = (("thresher-delivery-count", b"3"), ("thresher-origin-id", b"7-8"), ("thresher-enqueued-at", b"99"))
    read = record_of(MessageId(0, 1), b"pay", (("h", b"v"), ("n", None), *told), 5)
    ((topic, content, key, partition, _, headers),) = records_of(
        b"q", Batch(records=(read,), spans={0: Span(0, 2)}), CONFIG, 4, nowhere
    )
    assert (topic, key, partition, headers) == ("k", b"q", 4, None)
    assert decode(content or b"") == Marker(
        type=MarkerType.START,
        message_id=MessageId(0, 1),
        redeliver_after_ms=60_000,
        key=b"q",
        value=b"pay",
        headers=(("h", b"v"), ("n", None)),
        delivery_count=3,
        origin_id=MessageId(7, 8),
        enqueued_at_ms=99,
    )


def test_a_dead_letter_holds_the_message_and_its_reason() -> None:
    read = record_of(MessageId(0, 1), b"pay", (("h", b"v"),), 5)
    batch = Batch(records=(read,), spans={0: Span(0, 2)}).dead("too large")
    ((topic, content, key, partition, _, headers),) = records_of(b"q", batch, CONFIG, 4, nowhere)
    assert (topic, content, key, partition) == ("m.dead", b"pay", b"0-1@5/q", -1)
    assert headers is not None
    assert dict(headers)["h"] == b"v"
    assert dict(headers)[DEAD_REASON] == b"too large"


def test_a_batch_of_other_queues_records_has_no_starts() -> None:
    assert records_of(b"q", batch_of(), CONFIG, 0, nowhere) == []


@pytest.mark.parametrize("refusal", [Refusal.ROW, Refusal.SIZE, Refusal.TIME])
def test_a_refused_record_outweighs_missing_answers(refusal: Refusal) -> None:
    faults = [(Refusal.TRANSIENT, "slow", "k"), (refusal, "too large", "k"), (Refusal.TRANSIENT, "slow", "k")]
    assert judged(faults) == TOO_LARGE


def test_a_missing_answer_is_uncertain() -> None:
    assert judged([(Refusal.TRANSIENT, "slow", "k")]) == Uncertain("slow")
    assert judged([]) is None


def test_an_unknown_partition_is_retried_with_a_new_producer() -> None:
    assert judged([(Refusal.TOPIC, "unknown partition", "k")]) == Uncertain("k: unknown partition")
    assert judged([(Refusal.TOPIC, "unknown partition", "k"), (Refusal.SIZE, "too large", "k")]) == Refused("too large")


@pytest.mark.parametrize("refusal", [Refusal.TOPIC_DENIED, Refusal.CLIENT])
def test_a_missing_permission_is_named_with_a_remedy(refusal: Refusal) -> None:
    with pytest.raises(ProducerRefused, match="grant Write"):
        judged([(refusal, "denied", "k")])
