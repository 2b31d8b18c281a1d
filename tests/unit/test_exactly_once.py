"""The decisions of the exactly-once protocol, step by step: each test answers its effects."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pytest

from tests.relay.model import bundled
from thresher.core.errors import Superseded
from thresher.db.waits import Waits
from thresher.delivery.batch import Batch, FailingTransform
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.effects import (
    Abandon,
    AwaitSettled,
    Begin,
    Blocked,
    CheckTransactionEnded,
    CloseAhead,
    Commit,
    Control,
    DiscardReadAhead,
    Effect,
    Fault,
    Flush,
    Hold,
    Holder,
    Init,
    KeepWaits,
    Lift,
    Produce,
    ReadControl,
    ReadHolder,
    ReadProgress,
    Recovered,
    Release,
    ReportRejected,
    Settle,
    Survey,
    Sweep,
    Take,
    Unhold,
    WaitForTransform,
    WriteClaim,
    WriteProgress,
)
from thresher.delivery.exactly_once import protocol
from thresher.delivery.fate import FILTERED, SENT, Dead, Filtered, Kind, Sent, dead
from thresher.delivery.problem import ForeignProgress, Halted
from thresher.delivery.row import Record, Row
from thresher.delivery.rules import Poison, Rules
from thresher.delivery.waiting.withheld import MOST_ROWS
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, Surveyed, Unavailable
from thresher.relay.protocol.progress import Origin, OutboxProgress, Progress

ME = ShardIdentity(outbox_id="ours", term="now", shard=2)
MISSING = Unavailable(refusal=Refusal.TOPIC, why="t is not there")
REFUSED = Fault(kind=Kind.REJECTED, why="no")
# The effects before progress is read.
CLAIMED = [ReadControl, Init, ReadControl, WriteClaim, ReadHolder]


def control(term: str = "now", incarnation: str = "1", outbox_id: str = "ours") -> Control:
    return Control(outbox_id=outbox_id, term=term, system_id="s", incarnation=incarnation)


def record(number: int, incarnation: str = "1", outbox_id: str = "ours") -> Progress:
    origin = Origin(outbox_id=outbox_id, system_id="s", incarnation=incarnation, term="before", shard=2)
    return Progress(origin=origin, number=number, ids=[number], create_times=[0], fates=[SENT])


def row(id_: int, *, topic: str = "t", key: bytes | None = b"k", partition: int = -1, plan: Any = None) -> Row:
    return Row(id_, id_ * 10, topic, key, Record(topic, b"v", key, partition, 0, None) if plan is None else plan)


class Run:
    """Runs the protocol. `answers` holds the answer to each kind of effect; by default all effects succeed."""

    def __init__(self, progress_bytes: int = 900_000, **rules: Any) -> None:
        book = OutboxProgress(outbox_id="ours", term="now", shard=2, most_bytes=progress_bytes)
        self.steps = protocol(ME, Rules(**rules), book)
        self.seen: list[Effect] = []
        self.due: Effect = next(self.steps)
        self.answers: dict[type[Effect], Callable[[Any], Any]] = {
            ReadControl: lambda _: control(),
            ReadHolder: lambda _: Holder(id_index=self.id_index, ours=True),
            ReadProgress: lambda _: [self.last],
            Survey: lambda effect: self.surveyed(dict.fromkeys(effect.topics, Available(partitions=3))),
            Produce: lambda _: [],
            Flush: lambda _: [],
            WriteProgress: lambda _: True,
            AwaitSettled: lambda _: True,
            Commit: lambda _: True,
        }
        self.now = 0.0
        self.last = record(7)

    @property
    def id_index(self) -> int:
        """Return the transactional id that was initialised last."""
        return next(effect.id_index for effect in reversed(self.seen) if isinstance(effect, Init))

    def surveyed(self, statuses: dict[str, Any]) -> Surveyed:
        return Surveyed(now=self.now, topics=statuses)

    def on(self, kind: type[Effect], answer: Callable[[Any], Any]) -> "Run":
        self.answers[kind] = answer
        return self

    def flushes(self, *faults: Sequence[Fault]) -> "Run":
        """Answer the first flushes with these faults, and the later ones without."""
        left = [list(each) for each in faults]
        return self.on(Flush, lambda _: left.pop(0) if left else [])

    def with_status(self, status: Any) -> "Run":
        return self.on(Survey, lambda effect: self.surveyed(dict.fromkeys(effect.topics, status)))

    def refuses(self, *poison: int) -> "Run":
        """Refuse every flush with one of these rows, without naming the row."""

        return self.on(Flush, lambda _: [REFUSED] if self.flushed() & set(poison) else [])

    def flushed(self) -> set[int]:
        """Return the rows whose records were produced last."""
        rows = next(effect.rows for effect in reversed(self.seen) if isinstance(effect, Produce))
        return {each.id for each in rows if isinstance(each.plan, Record)}

    def until(self, *kinds: type[Effect]) -> list[Effect]:
        """Run until an effect of these kinds is due. Return the effects before it."""
        begun = len(self.seen)
        while not isinstance(self.due, kinds):
            self.step()
        return self.seen[begun:]

    def step(self) -> None:
        effect = self.due
        self.seen.append(effect)
        if isinstance(effect, Commit):
            self.last = notes(self.seen)[-1]
        answer = self.answers.get(type(effect))
        self.due = self.steps.send(None if answer is None else answer(effect))

    def carry(self, *rows: Row) -> list[Effect]:
        """Recover if necessary, give one batch, and return its effects."""
        self.until(Take)
        begun = len(self.seen)
        self.seen.append(self.due)
        self.due = self.steps.send(Batch(rows=bundled(rows)))
        self.until(Take)
        return tended_left_out(self.seen[begun + 1 :])

    def work_off(self, *rows: Row) -> list[Effect]:
        """Give the rows without a fate again and again, as reads of the table do, until no more rows get one."""
        begun = len(self.seen)
        for _ in range(50):
            dead, known = blocking(self.seen), fates(self.seen)
            blocked = {each.stream for each in rows if each.id in dead}
            left = [each for each in rows if each.id not in known and each.stream not in blocked]
            if not left or DiscardReadAhead not in kinds(self.carry(*left)):
                break
        return tended_left_out(self.seen[begun:])


def tended_left_out(effects: list[Effect]) -> list[Effect]:
    """Return the effects without the last ones, by which the gate tends to what waits before the next batch."""
    while effects and isinstance(effects[-1], Survey | Unhold | KeepWaits):
        effects.pop()
    return effects


def kinds(effects: Iterable[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def notes(effects: Iterable[Effect]) -> list[Progress]:
    return [cast("Progress", effect.progress) for effect in effects if isinstance(effect, WriteProgress)]


def fates(effects: Iterable[Effect]) -> dict[int, Any]:
    """Return the fates by row, in the order of the progress records."""
    return {
        id_: fate.kind if isinstance(fate, Dead) else type(fate)
        for note in notes(effects)
        for id_, fate in zip(note.ids, note.fates, strict=True)
    }


def blocking(effects: Iterable[Effect]) -> set[int]:
    """Return the rows that died and block their key."""
    return {
        id_
        for note in notes(effects)
        for id_, fate in zip(note.ids, note.fates, strict=True)
        if isinstance(fate, Dead) and fate.blocking
    }


# Recovery


def test_recovery_fences_then_reads_then_settles_then_takes() -> None:
    run = Run()
    done = run.until(Take)
    assert kinds(done) == [*CLAIMED, ReadProgress, Settle, AwaitSettled, Recovered]
    assert Settle(record(7), recovering=True) in done
    assert ReadProgress(whole=False) in done


def test_a_new_incarnation_settles_the_whole_horizon_oldest_first() -> None:
    run = Run().on(ReadControl, lambda _: control(incarnation="2"))
    run.on(ReadProgress, lambda effect: [record(5), record(6), record(7)] if effect.whole else [record(7)])
    done = run.until(Take)
    assert [effect.progress.number for effect in done if isinstance(effect, Settle)] == [5, 6, 7]
    assert kinds(done)[-2:] == [AwaitSettled, Recovered]


def test_an_empty_partition_gets_our_progress_before_rows_are_taken() -> None:
    run = Run().on(ReadProgress, lambda _: [])
    done = run.until(Take)
    assert kinds(done)[-4:] == [Begin, WriteProgress, Commit, Recovered]
    (genesis,) = notes(done)
    assert (genesis.number, list(genesis.ids), genesis.origin.outbox_id) == (0, [], "ours")
    assert genesis.origin == Origin(outbox_id="ours", system_id="s", incarnation="1", term="now", shard=2)
    assert notes(run.carry(row(1)))[0].number == 1


@pytest.mark.parametrize("found", [control(term="later"), control(outbox_id="theirs"), None])
def test_an_attempt_superseded_before_init_fences_nobody(found: Control | None) -> None:
    run = Run().on(ReadControl, lambda _: found)
    with pytest.raises(Superseded):
        run.until(Take)
    assert kinds(run.seen) == [ReadControl]


@pytest.mark.parametrize("found", [control(term="later"), control(outbox_id="theirs"), None])
def test_an_attempt_superseded_after_init_never_inits_again(found: Control | None) -> None:
    looks = iter([control(), found])
    run = Run().on(ReadControl, lambda _: next(looks))
    with pytest.raises(Superseded):
        run.until(Take)
    assert kinds(run.seen) == [ReadControl, Init, ReadControl]
    with pytest.raises(StopIteration):
        next(run.steps)


def test_another_outboxs_progress_is_refused_and_not_settled() -> None:
    run = Run().on(ReadProgress, lambda _: [record(7, outbox_id="theirs")])
    with pytest.raises(ForeignProgress, match="theirs"):
        run.until(Take)
    assert kinds(run.seen)[-1] is ReadProgress


def test_another_outboxs_progress_within_the_horizon_is_refused_too() -> None:
    run = Run().on(ReadControl, lambda _: control(incarnation="2"))
    run.on(ReadProgress, lambda effect: [record(6, outbox_id="theirs"), record(7)] if effect.whole else [record(7)])
    with pytest.raises(ForeignProgress):
        run.until(Take)
    assert Settle not in kinds(run.seen)


# A transaction


def test_a_transaction_commits_after_its_predecessor_is_settled() -> None:
    done = Run().carry(row(1), row(2))
    assert kinds(done) == [Survey, Begin, Produce, Flush, WriteProgress, AwaitSettled, Commit, Settle]
    (note,) = notes(done)
    assert (note.number, list(note.ids), list(note.create_times), note.fates) == (8, [1, 2], [10, 20], [SENT, SENT])
    assert done[-1] == Settle(note)


def test_numbers_go_up_by_one_from_the_last_record() -> None:
    run = Run()
    assert [notes(run.carry(row(id_)))[0].number for id_ in (1, 2, 3)] == [8, 9, 10]


def test_no_record_is_produced_before_its_topics_check() -> None:
    done = Run().carry(row(1, topic="a"), row(2, topic="b"))
    assert done[0] == Survey(frozenset({"a", "b"}))
    assert kinds(done).index(Produce) > 0


def test_filtered_and_dead_rows_need_no_topic_check() -> None:
    done = Run().carry(row(1, plan=FILTERED), row(2, plan=dead(Kind.MALFORMED, "bad")))
    assert Survey not in kinds(done)
    assert fates(done) == {1: Filtered, 2: Kind.MALFORMED}


def test_an_empty_batch_opens_no_transaction() -> None:
    assert Run().carry() == []


def test_progress_too_large_for_a_record_is_split() -> None:
    done = Run(progress_bytes=4_096 + 40).carry(*(row(id_) for id_ in range(1, 6)))
    assert [list(note.ids) for note in notes(done)] == [[1, 2], [3, 4], [5]]
    assert [note.number for note in notes(done)] == [8, 9, 10]
    assert DiscardReadAhead not in kinds(done)


def test_stopping_waits_for_begun_transactions() -> None:
    run = Run()
    run.carry(row(1))
    run.seen.append(run.due)
    run.due = run.steps.send(None)
    assert isinstance(run.due, CloseAhead)
    run.step()
    assert isinstance(run.due, AwaitSettled)
    with pytest.raises(StopIteration):
        run.step()


def test_a_transaction_behind_a_hanging_settling_is_abandoned() -> None:
    run = Run().on(AwaitSettled, lambda effect: effect.within_seconds is None)
    done = run.carry(row(1))
    given_up = [Survey, Begin, Produce, Flush, WriteProgress, AwaitSettled, Abandon, AwaitSettled]
    recovery = [*CLAIMED, ReadProgress, Settle, AwaitSettled]
    assert kinds(done) == [*given_up, *recovery, DiscardReadAhead], "nothing is committed"
    bounded = [isinstance(each, AwaitSettled) and each.within_seconds is not None for each in done]
    assert bounded.index(True) == given_up.index(AwaitSettled)
    assert sum(bounded) == 1, "without an open transaction the wait has no limit"
    run.on(AwaitSettled, lambda _: True)
    assert notes(run.carry(row(1)))[0].number == 8, "the abandoned transaction's number is used again"


# Rejection


def test_a_rejection_starts_over_and_reads_again() -> None:
    done = Run().flushes([REFUSED]).carry(row(1), row(2))
    recovery = [*CLAIMED, ReadProgress, Settle, AwaitSettled]
    begun = [Survey, Begin, Produce, Flush, ReportRejected]
    assert kinds(done) == [*begun, *recovery, Survey, DiscardReadAhead], "nothing is committed"
    assert done[4] == ReportRejected(frozenset({"t"}), 2, "no")


def test_an_attempt_superseded_while_starting_over_leaves() -> None:
    run = Run().flushes([REFUSED])
    run.until(Take)
    run.on(ReadControl, lambda _: control(term="later"))
    with pytest.raises(Superseded):
        run.carry(row(1), row(2))
    assert kinds(run.seen)[-3:] == [Flush, ReportRejected, ReadControl]


def test_a_rejection_without_a_name_is_found_by_halving() -> None:
    done = Run().refuses(3).work_off(*(row(id_, key=None) for id_ in range(1, 6)))
    assert fates(done) == {1: Sent, 2: Sent, 3: Kind.REJECTED, 4: Sent, 5: Sent}
    assert list(fates(done)) == [1, 2, 3, 4, 5], "the order stays"


def test_several_poison_rows_are_each_found() -> None:
    done = Run().refuses(1, 4, 5).work_off(*(row(id_, key=None) for id_ in range(1, 7)))
    assert fates(done) == {id_: Kind.REJECTED if id_ in {1, 4, 5} else Sent for id_ in range(1, 7)}


def test_a_poison_row_is_found_among_arriving_rows() -> None:
    run = Run().refuses(1)
    for arrival in range(100, 160, 2):
        run.carry(row(arrival, key=None), row(1, key=None), row(arrival + 1, key=None))
    assert fates(run.seen)[1] is Kind.REJECTED


def test_poison_rows_of_alternating_batches_are_each_found() -> None:
    # Reads may begin with different rows: the rejection of one batch must not erase that of another.
    run = Run().refuses(2, 12)
    batches = [[row(id_, key=None) for id_ in range(first, first + 6)] for first in (1, 11)]
    for _ in range(10):
        for batch in batches:
            found = fates(run.seen)
            if left := [each for each in batch if each.id not in found]:
                run.carry(*left)
    dead = {2: Kind.REJECTED, 12: Kind.REJECTED}
    assert fates(run.seen) == {**dict.fromkeys([*range(1, 7), *range(11, 17)], Sent), **dead}


def test_a_row_alone_among_filtered_ones_is_the_poison() -> None:
    done = Run().flushes([REFUSED]).work_off(row(1, plan=FILTERED), row(2), row(3, plan=FILTERED))
    assert fates(done) == {1: Filtered, 2: Kind.REJECTED, 3: Filtered}
    assert kinds(done).count(Begin) == 2


def test_a_named_row_is_dead_at_the_next_try() -> None:
    named = Fault(kind=Kind.TOO_LARGE, why="too large", place=1)
    done = Run().flushes([named]).work_off(row(1), row(2), row(3))
    assert fates(done) == {1: Sent, 2: Kind.TOO_LARGE, 3: Sent}
    # The dead row is settled first, whatever becomes of the others.
    assert kinds(done).count(Begin) == 3
    note, _ = notes(done)
    assert note.fates == [Dead(Kind.TOO_LARGE, "too large", attempts=1, blocking=False)]


def test_a_fault_does_not_apply_to_a_reused_id() -> None:
    run = Run().flushes([Fault(kind=Kind.TOO_LARGE, why="too large", place=0)])
    run.carry(row(1))
    assert fates(run.carry(row(1)._replace(create_time=11))) == {1: Sent}


def test_a_row_waits_for_its_partition_with_its_key_alone() -> None:
    run = Run(grace_seconds=60)
    rows = [row(1, partition=2), row(2, partition=3), row(3), row(4, key=b"other"), row(5, key=None, partition=3)]
    done = run.carry(*rows)
    assert fates(done) == {1: Sent, 4: Sent}
    (hold,) = [effect for effect in done if isinstance(effect, Hold)]
    assert (set(hold.topics), set(hold.missing)) == (set(), {"t"})
    assert (set(hold.streams), dict(hold.rows)) == ({("t", b"k")}, {5: 50})
    assert kinds(done)[-2:] == [AwaitSettled, DiscardReadAhead], "rows that went back are not overtaken"
    run.now = 59.0
    assert fates(run.carry(*rows[1:3])) == {}
    run.with_status(Available(partitions=4))
    done = run.work_off(*rows[1:3], rows[4])
    assert fates(done) == {2: Sent, 3: Sent, 5: Sent}
    assert Lift("t") in done


def test_a_row_without_its_partition_is_dead_after_grace() -> None:
    run = Run(grace_seconds=60)
    for run.now in (0.0, 30.0, 59.0):
        assert fates(run.carry(row(2, partition=3), row(3))) == {}
    run.now = 60.0
    done = run.carry(row(2, partition=3), row(3))
    assert fates(done) == {2: Kind.NO_PARTITION, 3: Sent}
    assert "for 60 s" in notes(done)[0].fates[0].reason  # type: ignore[union-attr]
    assert Lift("t") in done


def test_a_thousand_waiting_rows_hold_their_topic() -> None:
    run = Run(grace_seconds=60)
    done = run.carry(*(row(id_, key=None, partition=3) for id_ in range(1, 1_002)), row(2_000), row(2_001, topic="u"))
    assert fates(done) == {2_001: Sent}
    (hold,) = [effect for effect in done if isinstance(effect, Hold)]
    assert (set(hold.topics), set(hold.streams), dict(hold.rows)) == ({"t"}, set(), {})


def merged(id_: int, partition: int = -1) -> Row:
    """Return a row with its own stored topic and key, and the sent topic and key of all merged rows."""
    return row(id_, topic=f"stored {id_}", plan=Record("t", b"v", b"k", partition, 0, None))


def test_rows_with_a_waiting_rows_sent_key_wait_too() -> None:
    run = Run(grace_seconds=60, merging=True)
    done = run.carry(merged(1, partition=3), merged(2), row(3, topic="u"))
    assert fates(done) == {3: Sent}
    (hold,) = [effect for effect in done if isinstance(effect, Hold)]
    assert (set(hold.topics), set(hold.streams)) == (set(), set())
    assert (dict(hold.rows), dict(hold.behind)) == ({1: 10}, {2: 20})
    # Another row comes while the two are left out of reads, and joins them.
    assert fates(run.carry(merged(4))) == {}
    run.now = 3.0
    run.with_status(Available(partitions=4))
    # Their wait is over, and only one of them is read: all are read again, by id.
    done = run.carry(merged(4))
    assert (fates(done), Release() in done, kinds(done)[-1]) == ({}, True, DiscardReadAhead)
    assert fates(run.work_off(merged(1, partition=3), merged(2), merged(4))) == {1: Sent, 2: Sent, 4: Sent}


def test_rows_behind_a_dead_row_are_read_at_once() -> None:
    run = Run(grace_seconds=60, merging=True)
    for run.now in (0.0, 30.0, 59.0):
        assert fates(run.carry(merged(1, partition=3), merged(2))) == {}
    run.now = 60.0
    # Only the first row is read: the other one is left out for longer.
    done = run.carry(merged(1, partition=3))
    assert (fates(done), Release() in done) == ({}, True)
    assert fates(run.carry(merged(1, partition=3), merged(2))) == {1: Kind.NO_PARTITION, 2: Sent}


def test_rows_of_a_restored_topic_are_read_again() -> None:
    run = Run(grace_seconds=600, merging=True).with_status(Unavailable(refusal=Refusal.TOPIC, why="it is not there"))
    assert fates(run.carry(merged(1, partition=9), row(2, topic="t", key=b"other"))) == {}
    run.now = 5.0
    run.with_status(Available(partitions=3))
    assert Release() in run.carry(merged(1, partition=9))
    assert fates(run.carry(merged(1, partition=9), row(2, topic="t", key=b"other"))) == {2: Sent}


def test_rows_behind_a_filtered_row_are_read_again() -> None:
    run = Run(grace_seconds=600, merging=True).with_status(Unavailable(refusal=Refusal.TOPIC, why="it is not there"))
    assert fates(run.carry(merged(1), merged(2))) == {}
    assert Release() in run.carry(merged(1)._replace(plan=FILTERED))


def test_a_shard_pauses_when_too_many_rows_wait() -> None:
    run = Run(grace_seconds=60, merging=True).with_status(Unavailable(refusal=Refusal.TOPIC, why="it is not there"))
    (hold,) = [effect for effect in run.carry(*map(merged, range(1, MOST_ROWS))) if isinstance(effect, Hold)]
    assert (len(hold.rows), len(hold.behind), hold.resting) == (1, MOST_ROWS - 2, False)
    more = range(10 * MOST_ROWS, 10 * MOST_ROWS + 3)
    (hold,) = [effect for effect in run.carry(*map(merged, more)) if isinstance(effect, Hold)]
    assert (len(hold.rows), len(hold.behind), hold.resting) == (1, 0, True)
    assert hold.why.startswith("it is not there; too many rows wait")


def test_rows_whose_partition_appeared_are_sent_together() -> None:
    run = Run(grace_seconds=60)
    rows = [row(id_, key=None, partition=3) for id_ in range(1, 6)]
    assert fates(run.carry(*rows)) == {}
    run.with_status(Available(partitions=4))
    done = run.carry(*rows)
    assert fates(done) == dict.fromkeys(range(1, 6), Sent)
    assert kinds(done).count(Begin) == 1
    assert Lift("t") in done


def test_a_silent_topic_is_retried_after_its_transaction_ended() -> None:
    silent = Fault(kind=None, why="no answer from u/0", topic="u")
    run = Run().flushes([silent])
    run.on(Init, lambda effect: Blocked("u does not answer") if effect.id_index == 0 else None)
    run.on(CheckTransactionEnded, lambda _: False)
    assert fates(run.carry(row(1, topic="u"), row(2))) == {}
    # The shard goes on with another id, and does not try the topic.
    assert fates(run.work_off(row(1, topic="u"), row(2))) == {2: Sent}
    assert run.id_index == 1
    tries = 0
    for run.now in range(600):
        done = run.carry(row(1, topic="u"), row(3))
        assert fates(done) == {3: Sent}
        tries += done.count(CheckTransactionEnded(0))
        # No transaction waits for the topic, and no successor is fenced.
        assert kinds(done).count(CloseAhead) == done.count(CheckTransactionEnded(0))
    assert 3 <= tries <= 15
    run.on(CheckTransactionEnded, lambda _: True)
    run.now = 5_000.0
    assert fates(run.carry(row(1, topic="u"), row(4))) == {1: Sent, 4: Sent}
    assert not [effect for effect in run.carry(row(5, topic="u")) if isinstance(effect, CheckTransactionEnded)]


TOO_EARLY = Fault(kind=Kind.REJECTED, why="its time is ahead", passing=True)


def timed(id_: int, key: bytes = b"k") -> Row:
    """Return a row with an explicit timestamp."""
    return row(id_, key=key, plan=Record("t", b"v", key, -1, 5, None))


def test_a_row_with_a_refused_timestamp_is_retried_during_grace() -> None:
    run = Run(grace_seconds=60).on(Flush, lambda _: [TOO_EARLY] if 1 in run.flushed() else [])
    rows = [timed(1), row(2), row(3, key=b"other")]
    done = run.work_off(*rows)
    assert fates(done) == {3: Sent}, "the rows of its key wait with it"
    tries = kinds(run.seen).count(Init)
    run.now = 5.0
    assert fates(run.carry(*rows[:2])) == {}
    assert kinds(run.seen).count(Init) == tries, "not at once again"
    for run.now in (20.0, 40.0, 55.0):
        assert fates(run.carry(*rows[:2])) == {}
    run.now = 70.0
    assert fates(run.work_off(*rows[:2])) == {1: Kind.REJECTED, 2: Sent}
    assert Lift("t") in run.seen


def test_a_timestamp_beyond_its_topics_limit_is_not_tried() -> None:
    run = Run(grace_seconds=60)
    run.on(
        Survey,
        lambda effect: Surveyed(
            now=run.now, topics=dict.fromkeys(effect.topics, Available(partitions=3, after_ms=0)), server_ms=0
        ),
    )
    ahead = Record("t", b"v", b"k", -1, 3_600_000, None)
    rows = [row(1, plan=ahead), row(2), row(3, key=b"other")]
    assert fates(run.carry(*rows)) == {3: Sent}, "the rows of its key wait with it"
    for run.now in (30.0, 59.0):
        assert fates(run.carry(*rows[:2])) == {}
    run.now = 60.0
    assert fates(run.carry(*rows[:2])) == {1: Kind.REJECTED, 2: Sent}
    assert ReportRejected not in kinds(run.seen)


def test_many_overdue_rows_are_left_to_sweeps() -> None:
    run = Run(grace_seconds=60).with_status(MISSING).on(Sweep, lambda _: frozenset())
    rows = [row(id_, key=b"%d" % id_) for id_ in range(1_000)]
    for run.now in (1.0, 30.0, 61.0):
        assert fates(run.carry(*rows)) == {}
    run.carry()
    assert Sweep(frozenset({"t"})) in run.seen
    assert len(fates(run.carry(*rows[:500]))) == 500
    run.now = 63.0
    run.on(Sweep, lambda _: frozenset({"t"}))
    run.carry()
    assert Lift("t") in run.seen, "no row waits any more"


def test_a_timestamp_accepted_later_keeps_its_rows_order() -> None:
    run = Run(grace_seconds=60).on(Flush, lambda _: [TOO_EARLY] if run.now < 10 and 1 in run.flushed() else [])
    run.work_off(timed(1), row(2))
    run.now = 20.0
    assert list(fates(run.work_off(timed(1), row(2)))) == [1, 2]


@pytest.mark.parametrize("merging", [False, True])
def test_many_rows_with_refused_timestamps_delay_no_others(merging: bool) -> None:
    late = set(range(1, 13))
    rows = [timed(id_, key=b"%d" % id_) for id_ in sorted(late)]
    run = Run(grace_seconds=60, merging=merging)

    def answer(_: Flush) -> list[Fault]:
        """Name the rows, and the error only for a single row, as a client does."""
        produced = next(effect for effect in reversed(run.seen) if isinstance(effect, Produce)).rows
        sent = [place for place, _ in produced.records()]
        places = [place for place in sent if produced[place].id in late]
        if len(sent) == 1:
            return [TOO_EARLY] if places else []
        return [Fault(kind=Kind.REJECTED, why="not valid", place=place, doubtful=True) for place in places]

    run.on(Flush, answer)
    done = run.work_off(*rows, *(row(id_, key=b"good") for id_ in range(100, 1_100)))
    assert fates(done) == dict.fromkeys(range(100, 1_100), Sent)
    assert kinds(run.seen).count(ReportRejected) == 1 + len(late)
    before = kinds(run.seen).count(ReportRejected)
    for run.now in range(1, 60):
        news = row(2_000 + int(run.now), key=b"good")
        while news.id not in fates(run.seen):
            run.carry(news, *rows)
    assert 5 <= kinds(run.seen).count(ReportRejected) - before <= 20
    run.now = 61.0
    before = kinds(run.seen).count(ReportRejected)
    assert fates(run.work_off(*rows)) == dict.fromkeys(late, Kind.REJECTED)
    assert kinds(run.seen).count(ReportRejected) == before, "the rows are not each tried once more"


def test_a_silent_topic_is_held_and_no_row_dies() -> None:
    silent = Fault(kind=None, why="partition 0 of t does not answer", topic="t")
    run = Run(grace_seconds=1).flushes([silent])
    run.carry(row(1), row(2, topic="u"))
    for run.now in (1.0, 4.0):
        done = run.carry(row(1), row(2, topic="u"))
        assert fates(done) == {2: Sent}
        assert Hold(frozenset({"t"}), silent.why, missing={"t": silent.why}) in done
    run.now = 6.0
    done = run.carry(row(1))
    assert fates(done) == {1: Sent}
    assert Lift("t") in done


@pytest.mark.parametrize("topics", [1, 5])
def test_topics_with_row_after_row_refused_wait_alone(topics: int) -> None:
    """The good topic's rows are in the same reads; a refusal names its row, as a broker does. It takes a second."""
    poison = [row(id_, topic=f"t{id_ % topics}", key=b"%d" % id_) for id_ in range(1, 101)]
    run = Run(grace_seconds=60)

    def answer(_: Flush) -> list[Fault]:
        produced = next(effect for effect in reversed(run.seen) if isinstance(effect, Produce)).rows
        sent = [place for place, _ in produced.records()]
        places = [place for place in sent if produced[place].topic != "u"]
        run.now += 1 if places else 0
        return [Fault(kind=Kind.REJECTED, why="no key", place=place, doubtful=len(sent) > 1) for place in places]

    run.on(Flush, answer)
    good = 0
    while run.now < 300:
        run.now += 0.5
        good += 1
        news = row(1_000 + good, topic="u", key=b"good")
        known = fates(run.seen)
        run.carry(*(each for each in [*poison, news] if each.id not in known))
        if good == 1:
            # It was in a transaction with the others.
            run.carry(*(each for each in [*poison, news] if each.id not in known))
        assert fates(run.seen)[news.id] is Sent
    assert kinds(run.seen).count(ReportRejected) <= 17 + 300 / 10
    dead = [fate for fate in fates(run.seen).values() if fate is Kind.REJECTED]
    assert len(dead) >= 20, "they are set aside meanwhile"
    for _ in range(2 * topics):
        run.now += 100.0
        run.carry()
    assert {Lift(f"t{number}") for number in range(topics)} <= {each for each in run.seen if isinstance(each, Lift)}


def test_names_of_missing_topics_take_no_turn_of_a_suspect() -> None:
    """Four topics have a refused row, and the budget is overdrawn. Each read has a new name that no topic has."""
    rows = [row(id_, topic=f"t{id_ % 4}", key=b"%d" % id_) for id_ in range(1, 9)]
    run = Run(grace_seconds=600)
    run.on(
        Survey,
        lambda effect: run.surveyed(
            {topic: Available(partitions=3) if topic[0] == "t" else MISSING for topic in effect.topics}
        ),
    )

    def answer(_: Flush) -> list[Fault]:
        produced = next(effect for effect in reversed(run.seen) if isinstance(effect, Produce)).rows
        bad = [place for place, _ in produced.records() if produced[place].id <= 4][:1]
        run.now += 3 * len(bad)
        return [Fault(kind=Kind.REJECTED, why="no", place=place) for place in bad]

    run.on(Flush, answer)
    for number in range(100, 180):
        run.now += 1.1
        known = fates(run.seen)
        run.carry(*(each for each in rows if each.id not in known), row(number, topic=f"missing{number}"))
        if kinds(run.seen).count(ReportRejected) == 4:
            break
    overdrawn_until = run.now + 60
    while len(fates(run.seen)) < len(rows):
        run.now += 1.1
        number += 1
        known = fates(run.seen)
        run.carry(*(each for each in rows if each.id not in known), row(number, topic=f"missing{number}"))
    assert run.now < overdrawn_until, "they had turns meanwhile"


@pytest.mark.parametrize("merging", [False, True])
def test_a_blocking_row_follows_earlier_rows_that_are_tried_alone(*, merging: bool) -> None:
    run = Run(poison=Poison.BLOCK_KEY, merging=merging).flushes([Fault(kind=Kind.REJECTED, why="no", place=0)])
    run.carry(row(1, key=b"refused"))
    run.now = 10.0
    bad = dead(Kind.MALFORMED, "bad")
    done = run.carry(row(2), row(3, plan=bad), row(4, topic="u"), row(5, topic="u", plan=bad), row(6))
    assert list(fates(done)) == [4, 5, 2, 3]


def test_a_row_without_a_key_is_not_tried_at_a_compacted_topic() -> None:
    run = Run().on(
        Survey, lambda effect: run.surveyed(dict.fromkeys(effect.topics, Available(partitions=3, keyed=True)))
    )
    done = run.work_off(row(1), row(2, key=None), row(3, key=b""))
    assert fates(done) == {1: Sent, 2: Kind.REJECTED, 3: Sent}
    assert ReportRejected not in kinds(done)
    # Only what the cluster said just now counts.
    assert Survey(frozenset({"t"}), fresh=True) in done


# Topics


def test_rows_of_a_missing_topic_are_held_alone() -> None:
    run = Run()
    run.on(Survey, lambda _: run.surveyed({"t": MISSING, "u": Available(partitions=1)}))
    done = run.carry(row(1), row(2, topic="u"), row(3))
    assert fates(done) == {2: Sent}
    assert [effect for effect in done if isinstance(effect, Hold)] == [
        Hold(frozenset({"t"}), MISSING.why, missing={"t": MISSING.why}, lasting=frozenset({"t"}))
    ]
    assert kinds(done)[-2:] == [AwaitSettled, DiscardReadAhead], "rows that went back are not overtaken"


@pytest.mark.parametrize("merging", [False, True])
def test_each_held_topic_has_its_own_reason(*, merging: bool) -> None:
    run = Run(merging=merging)
    statuses = {topic: Unavailable(refusal=None, why=f"{topic}: nobody leads it") for topic in "tu"}
    done = run.on(Survey, lambda _: run.surveyed(statuses)).carry(row(1), row(2, topic="u"))
    (hold,) = [effect for effect in done if isinstance(effect, Hold)]
    assert hold.missing == {"t": "t: nobody leads it", "u": "u: nobody leads it"}


def test_a_missing_partition_is_the_reason_of_its_topic_alone() -> None:
    (hold,) = [e for e in Run().carry(row(1, partition=3), row(2, topic="u", partition=4)) if isinstance(e, Hold)]
    assert [(topic, why.split()[1:4]) for topic, why in hold.missing.items()] == [
        ("t", ["3", "of", "t"]),
        ("u", ["4", "of", "u"]),
    ]


def test_rows_of_a_missing_topic_die_only_after_grace() -> None:
    run = Run(grace_seconds=60).with_status(MISSING)
    for run.now in (100.0, 159.9):
        assert fates(run.carry(row(1))) == {}
    run.now = 160.0
    done = run.carry(row(1))
    assert fates(done) == {1: Kind.NO_TOPIC}
    assert "for 60 s" in notes(done)[0].fates[0].reason  # type: ignore[union-attr]


def test_what_waits_is_kept_when_it_changes_and_now_and_then() -> None:
    run = Run(grace_seconds=60).on(Sweep, lambda _: frozenset())
    run.on(Survey, lambda _: run.surveyed({"t": MISSING, "u": Available(partitions=1)}))
    for run.now in range(10):
        run.carry(row(1), row(2, topic="u", partition=7))
        run.carry()
    kept = [effect.waits for effect in run.seen if isinstance(effect, KeepWaits)]
    assert kept == [Waits(topics={"t": 0.0}, rows={(2, 20): 0.0})]
    for run.now in range(20, 390, 20):
        run.carry(row(1), *([row(2, topic="u", partition=7)] if run.now <= 60 else ()))
        run.carry()
    kept = [effect.waits for effect in run.seen if isinstance(effect, KeepWaits)][1:]
    # A change is kept at once; what has not changed, before it is too old to count.
    renewed: list[Any] = [({"t": at}, {}) for at in range(100, 390, 40)]
    assert [(dict(each.topics), dict(each.rows)) for each in kept] == [
        ({"t": 40}, {(2, 20): 40.0}),
        ({"t": 60}, {}),
        *renewed,
    ]


def test_a_later_attempt_goes_on_with_the_grace() -> None:
    run = Run(grace_seconds=60).on(Sweep, lambda _: frozenset())
    run.on(Survey, lambda _: run.surveyed({"t": MISSING, "u": Available(partitions=1)}))
    run.on(Recovered, lambda _: Waits(topics={"t": 50.0}, rows={(2, 20): 55.0}))
    run.now = 100.0
    rows = [row(1), row(2, topic="u", partition=7), row(3, topic="u", key=b"other", partition=7)]
    assert fates(run.carry(*rows)) == {}
    run.now = 105.0
    assert fates(run.carry(*rows)) == {2: Kind.NO_PARTITION}
    run.now = 110.0
    assert fates(run.carry(rows[0], rows[2])) == {1: Kind.NO_TOPIC}
    run.now = 160.0
    assert fates(run.carry(rows[2])) == {3: Kind.NO_PARTITION}


def test_rows_of_a_topic_without_a_leader_never_die() -> None:
    run = Run(grace_seconds=60)
    for run.now in (100.0, 150.0, 200.0):
        run.on(
            Survey,
            lambda _: run.surveyed({"t": Unavailable(refusal=None, why="no leader"), "u": Available(partitions=1)}),
        )
        done = run.carry(row(1), row(2, topic="u"))
        assert fates(done) == {2: Sent}
        assert Hold(frozenset({"t"}), "no leader", missing={"t": "no leader"}, lasting=frozenset({"t"})) in done
    run.now = 210.0
    assert fates(run.with_status(MISSING).carry(row(1))) == {}, "its grace begins now"


def test_a_topic_that_comes_back_gets_a_new_grace() -> None:
    run = Run(grace_seconds=60).with_status(MISSING)
    run.carry(row(1))
    run.now = 59.0
    run.with_status(Available(partitions=1))
    done = run.carry(row(1))
    assert Lift("t") in done
    assert fates(done) == {1: Sent}
    run.now = 61.0
    assert fates(run.with_status(MISSING).carry(row(2))) == {}


def denying(**rules: Any) -> Run:
    """Return a run in which the topic exists and refuses all records."""
    run = Run(**rules)

    def answer(_: Flush) -> list[Fault]:
        rows = next(effect.rows for effect in reversed(run.seen) if isinstance(effect, Produce))
        denied = any(isinstance(each.plan, Record) and each.plan.topic == "t" for each in rows)
        return [Fault(kind=Kind.NOT_AUTHORISED, why="not ours", topic="t")] if denied else []

    return run.on(Flush, answer)


def test_a_topic_that_refuses_records_is_held_alone() -> None:
    run = denying()
    assert Hold not in kinds(run.carry(row(1), row(2, topic="u")))
    done = run.carry(row(1), row(2, topic="u"))
    assert Hold(frozenset({"t"}), "not ours", missing={"t": "not ours"}) in done
    assert fates(done) == {2: Sent}
    assert kinds(done)[-1] is DiscardReadAhead


def test_rows_of_a_refusing_topic_die_after_grace() -> None:
    run = denying(grace_seconds=60)
    for run.now in (0.0, 0.5, 30.0, 30.5, 59.0):
        assert fates(run.carry(row(1))) == {}
    run.now = 60.0
    assert fates(run.work_off(row(1))) == {1: Kind.NOT_AUTHORISED}


def test_a_refusing_topic_stays_held_during_slow_restarts() -> None:
    run = denying()

    def slowly(_: Init) -> None:
        run.now += 1.5

    run.on(Init, slowly)
    done = [effect for _ in range(10) for effect in run.carry(row(1), row(2, topic="u"))]
    assert fates(done) == {2: Sent}


def test_a_refusing_topic_is_lifted_by_a_delivery() -> None:
    run = Run().flushes([Fault(kind=Kind.NOT_AUTHORISED, why="not ours", topic="t")])
    run.carry(row(1))
    run.now = 5.0
    done = run.carry(row(1))
    assert fates(done) == {1: Sent}
    assert Lift("t") in done


def test_a_held_topic_holds_transformed_rows_stored_for_it() -> None:
    elsewhere = Record("u", b"v", b"k", -1, 0, None)
    run = Run()
    run.on(Survey, lambda _: run.surveyed({"t": MISSING, "u": Available(partitions=1)}))
    done = run.carry(row(1), row(2, plan=elsewhere))
    assert fates(done) == {}
    assert kinds(done)[-1] is DiscardReadAhead


# Policies


def test_block_key_leaves_followers_out_and_reads_again() -> None:
    named = Fault(kind=Kind.REJECTED, why="no", place=0)
    rows = [row(1), row(2), row(3, key=b"other"), row(4, topic="u")]
    done = Run(poison=Poison.BLOCK_KEY).flushes([named]).work_off(*rows)
    assert fates(done) == {1: Kind.REJECTED, 3: Sent, 4: Sent}
    note, _ = notes(done)
    assert [fate.blocking for fate in note.fates if isinstance(fate, Dead)] == [True]
    assert kinds(done)[-2:] == [AwaitSettled, DiscardReadAhead]


def test_block_key_reaches_followers_in_later_records_of_the_batch() -> None:
    rules: dict[str, Any] = {"poison": Poison.BLOCK_KEY, "progress_bytes": 4_096 + 200}
    rows = [row(1, plan=dead(Kind.MALFORMED, "bad")), *(row(id_, key=b"o") for id_ in range(2, 20)), row(20)]
    done = Run(**rules).carry(*rows)
    assert len(notes(done)) > 1
    assert 20 not in fates(done)
    assert set(range(1, 20)) <= set(fates(done))


def test_block_key_applies_to_a_row_found_by_halving() -> None:
    done = Run(poison=Poison.BLOCK_KEY).refuses(2).work_off(*(row(id_) for id_ in range(1, 6)))
    assert fates(done) == {1: Sent, 2: Kind.REJECTED}
    assert kinds(done)[-1] is DiscardReadAhead


def test_block_key_blocks_nothing_for_a_row_without_a_key() -> None:
    rows = [row(1, key=None, plan=dead(Kind.MALFORMED, "bad")), row(2, key=None)]
    done = Run(poison=Poison.BLOCK_KEY).carry(*rows)
    assert fates(done) == {1: Kind.MALFORMED, 2: Sent}
    assert DiscardReadAhead not in kinds(done)


def test_dead_letter_lets_followers_be_sent() -> None:
    done = Run().carry(row(1, plan=dead(Kind.MALFORMED, "bad")), row(2))
    assert fates(done) == {1: Kind.MALFORMED, 2: Sent}
    assert DiscardReadAhead not in kinds(done)


@pytest.mark.parametrize("poison", [row(2, plan=dead(Kind.MALFORMED, "bad")), row(2, partition=9)])
def test_halt_opens_no_transaction(poison: Row) -> None:
    run = Run(poison=Poison.HALT, grace_seconds=0)
    with pytest.raises(Halted, match="row 2"):
        run.carry(row(1), poison)
    assert Begin not in kinds(run.seen)


def test_halt_commits_nothing_of_a_rejected_transaction() -> None:
    run = Run(poison=Poison.HALT).flushes([Fault(kind=Kind.REJECTED, why="no", place=1)])
    with pytest.raises(Halted, match="row 2"):
        run.carry(row(1), row(2))
    assert Commit not in kinds(run.seen)


def test_halt_ends_the_rejected_transaction() -> None:
    run = Run(poison=Poison.HALT).flushes([Fault(kind=Kind.REJECTED, why="no", place=1)])
    with pytest.raises(Halted):
        run.carry(row(1), row(2))
    done = kinds(run.seen)
    assert Init in done[done.index(Flush) :]


def test_rows_that_wait_for_a_transform_are_not_overtaken() -> None:
    run = Run()
    run.carry(row(1))
    run.until(Take)
    failing = FailingTransform(topics=frozenset({"t"}), why="it is out of order")
    begun = len(run.seen)
    run.seen.append(run.due)
    run.due = run.steps.send(Batch(rows=bundled([]), failing=failing))
    run.until(Take)
    assert run.seen[begun + 1 :] == [AwaitSettled(), WaitForTransform(failing), DiscardReadAhead()]
