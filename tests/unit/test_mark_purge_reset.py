"""The decisions of mark, purge and reset about faults, step by step: each test answers the effects."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from thresher.delivery.batch import NOTHING_YET, Batch
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.effects import (
    AwaitSettled,
    Commit,
    Control,
    DiscardReadAhead,
    Effect,
    Fault,
    Holder,
    Init,
    Produce,
    Reset,
    Settle,
    WriteProgress,
)
from thresher.delivery.fate import SENT, Dead, Kind
from thresher.delivery.faults import Faults
from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.rules import Rules
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, fenced
from thresher.kafka.topic_status import Available, Surveyed
from thresher.kafka.transactional import Undelivered
from thresher.relay.protocol.mark_purge_reset import Bounds, protocol
from thresher.relay.protocol.progress import Origin, OutboxProgress, Progress

ORIGIN = Origin(outbox_id="ours", system_id="s", incarnation="1", term="before", shard=2)


def row(id_: int, key: bytes | None = b"k") -> Row:
    return Row(id_, id_ * 10, "t", key, Record("t", b"v", key, -1, 0, None))


def ids_of(settle: Settle) -> Sequence[int]:
    assert isinstance(settle.progress, Progress)
    return settle.progress.ids


class Run:
    """Runs the protocol with these batches in turn. Effects without a given answer succeed."""

    def __init__(self, *batches: Sequence[Row], **answers: Callable[[Any], Any]) -> None:
        left = [list(batch) for batch in batches]
        self.steps = protocol(
            ShardIdentity(outbox_id="ours", term="now", shard=2),
            Rules(),
            OutboxProgress(outbox_id="ours", term="now", shard=2),
            Bounds(in_flight_rows=9, window_rows=9),
        )
        self.seen: list[Effect] = []
        self.last = Progress(origin=ORIGIN, number=7, ids=[7], create_times=[0], fates=[SENT])
        good: dict[str, Callable[[Any], Any]] = {
            "ReadControl": lambda _: Control(outbox_id="ours", term="now", system_id="s", incarnation="1"),
            "ReadHolder": lambda _: Holder(id_index=0, ours=True),
            "ReadProgress": lambda _: [self.last],
            "Survey": lambda effect: Surveyed(now=0.0, topics=dict.fromkeys(effect.topics, Available(partitions=3))),
            "Produce": lambda _: [],
            "Flush": lambda _: [],
            "WriteProgress": lambda _: True,
            "AwaitSettled": lambda _: True,
            "Commit": lambda _: True,
            "Take": lambda effect: Batch(rows=RowList(left.pop(0))) if left else None if effect.wait else NOTHING_YET,
        }
        answered = {**good, **answers}
        answer: Any = None
        try:
            while True:
                effect = self.steps.send(answer)
                self.seen.append(effect)
                reply = answered.get(type(effect).__name__)
                answer = None if reply is None else reply(effect)
                if isinstance(effect, Commit) and answer:
                    self.last = self.of(WriteProgress)[-1].progress
        except StopIteration:
            pass

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.seen if isinstance(effect, kind)]

    @property
    def waves(self) -> list[list[int]]:
        return [[each.id for each in effect.rows] for effect in self.of(Produce)]

    @property
    def settled(self) -> list[list[int]]:
        return [list(effect.progress.ids) for effect in self.of(Settle) if not effect.recovering]


def once(answer: Any, otherwise: Any) -> Callable[[Any], Any]:
    left = [answer]
    return lambda _: left.pop() if left else otherwise


def test_an_undelivered_row_is_sent_again_before_its_followers() -> None:
    run = Run([row(1), row(2), row(3, b"l")], Flush=once([Fault(kind=None, why="not now", place=0)], []))
    assert run.waves == [[1, 3], [1], [2]]
    assert run.settled == [[3], [1], [2]]
    assert [effect.despite for effect in run.of(WriteProgress)] == [True, False, False]
    assert not run.of(DiscardReadAhead)


def test_a_poison_row_dies_beside_a_transient_fault() -> None:
    faults = [Fault(kind=Kind.TOO_LARGE, why="large", place=1), Fault(kind=None, why="not now", place=2)]
    run = Run([row(1, b"a"), row(2, b"b"), row(3, b"c")], Flush=once(faults, []))
    first = run.of(WriteProgress)[0].progress
    assert list(first.ids) == [1, 2]
    assert isinstance(first.fates[1], Dead)
    assert run.settled == [[1, 2], [3]]


@pytest.mark.parametrize(
    "refused", [{"WriteProgress": once(False, True)}, {"Commit": once(False, True)}], ids=["note", "commit"]
)
def test_recovery_resolves_an_unknown_commit_and_marks_again(refused: Any) -> None:
    run = Run([row(1), row(2)], [row(1), row(2)], **refused)
    assert run.waves == [[1], [1], [2]]
    assert run.settled == [[1], [2]]
    kinds = [type(effect) for effect in run.seen]
    assert kinds.count(Init) == 2
    # The read-ahead is discarded, and its next marks have another leader id.
    assert kinds.index(DiscardReadAhead) > max(place for place, kind in enumerate(kinds) if kind is Init)


def test_a_fault_without_a_row_ends_the_transaction() -> None:
    run = Run([row(1)], [row(1)], Flush=once([Fault(kind=None, why="not now")], []))
    assert run.waves == [[1], [1]]
    assert run.settled == [[1]]


def test_a_shard_without_progress_leaves_waiting_to_its_supervisor() -> None:
    with pytest.raises(BrokerLost, match="5 transactions in a row came to nothing"):
        Run(*([row(1)] for _ in range(20)), Commit=lambda _: False)


def test_unsent_rows_lose_their_marks_at_the_end() -> None:
    taken = iter([Batch(rows=RowList([row(1), row(2), row(3)])), None])
    run = Run(Take=lambda _: next(taken))
    assert run.settled == [[1]]
    assert run.of(Reset) == [Reset((2, 3))]


def test_a_key_waits_for_the_purge_of_earlier_rows() -> None:
    run = Run([row(1), row(2)], [row(3, b"l")], [row(4, b"l")])
    kinds = [type(effect) for effect in run.seen]
    for purged, follower in ((1, 2), (3, 4)):
        (began,) = [place for place, each in enumerate(run.seen) if isinstance(each, Settle) and purged in ids_of(each)]
        (sent,) = [
            place
            for place, each in enumerate(run.seen)
            if isinstance(each, Produce) and follower in [row.id for row in each.rows]
        ]
        assert AwaitSettled in kinds[began:sent], run.seen


def undelivered(refusal: Refusal, place: int | None = None, key: bytes | None = b"k", topic: str = "t") -> Undelivered:
    return Undelivered(refusal=refusal, why="no", topic=topic, place=place, key=key)


class TopicSurvey:
    def ask(self, topics: Any) -> dict[str, Any]:
        return dict.fromkeys(topics, Available(partitions=3))

    def forget(self, _topic: str | None = None) -> None: ...


def faults_of(*found: Undelivered, rows: Sequence[Row] = (row(1), row(2, b"l"))) -> list[Fault]:
    topics: Any = TopicSurvey()
    return Faults(progress="p", topics=topics, lenient=True).of(found, RowList(rows))


def test_a_failed_delivery_is_matched_by_topic_and_key() -> None:
    assert faults_of(undelivered(Refusal.TRANSIENT, key=b"l")) == [Fault(kind=None, why="t: no", place=1)]
    # Rows without a key cannot be distinguished.
    keyless = [row(1, None), row(2, None)]
    assert faults_of(undelivered(Refusal.TRANSIENT, key=None), rows=keyless) == [Fault(kind=None, why="t: no")]


def test_a_missing_topic_is_the_topics_fault() -> None:
    assert faults_of(undelivered(Refusal.TOPIC, place=0)) == [Fault(kind=Kind.NO_TOPIC, why="t: no", topic="t")]


def test_a_record_refused_with_its_batch_names_no_row() -> None:
    assert faults_of(undelivered(Refusal.SIZE)) == [Fault(kind=Kind.TOO_LARGE, why="t: no", refused_by="t")]


def test_a_failed_progress_record_is_no_rows_fault() -> None:
    assert faults_of(undelivered(Refusal.TRANSIENT, place=0, topic="p")) == []
    with pytest.raises(BrokerLost) as caught:
        faults_of(undelivered(Refusal.FENCED, place=0))
    assert fenced(caught.value)
    with pytest.raises(BrokerLost):
        faults_of(undelivered(Refusal.ROW, place=0, topic="p"))
