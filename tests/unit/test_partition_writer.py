"""The offset's metadata decides a transaction's outcome. A writer that finds another attempt's metadata reads again."""

from collections.abc import Callable
from typing import Any

import pytest

from thresher.core.errors import Superseded
from thresher.delivery.crash_points import CrashPoints
from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.producer_problem import (
    CommitUnknown,
    OffsetsUnknown,
    ProducerFenced,
    ProducerProblem,
    RecordsUnanswered,
)
from thresher.kafka.refusal import Refusal
from thresher.kafka.transactional import Undelivered
from thresher.queue.wire.marker import Marker, MarkerType, MessageId
from thresher.tracker import claims, partition_writer
from thresher.tracker.partition_writer import Committed, PartitionWriter, Refused, Undone
from thresher.tracker.protocol.transaction import RecordRefused, Redelivered, RefusedKind, Transaction
from thresher.tracker.settings import TrackerSettings

SETTINGS = TrackerSettings(message_topic="m", marker_topic="k", dead_topic="m.dead", kafka={})
MARK = Transaction(offset=5, mark=(1, 0))


class Broker:
    """Holds the committed offset, and the outcome of the next commit."""

    def __init__(self) -> None:
        self.offset: GroupOffset | None = None
        self.inits = 0
        # Whether the next commit takes effect, and the error that it raises.
        self.ending: tuple[bool, type[Exception] | None] = (True, None)
        self.faults: list[Undelivered] = []
        self.before_init: Callable[[], None] = lambda: None
        self.now_ms: list[int] = []
        self.leaders = {0: 1}
        self.unanswered: tuple[str, int] | None = None
        # The partitions of the sent messages.
        self.placed: list[int] = []
        # The offset of partition 1, which may have a late claim of a stopped leader.
        self.other: GroupOffset | None = None

    def found(self, *_: object) -> dict[int, GroupOffset]:
        found = {0: self.offset, 1: self.other}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def commit_as(self, metadata: str, offset: int = 3) -> None:
        self.offset = GroupOffset(topic="k", partition=0, offset=offset, metadata=metadata)


class Producer:
    """A producer of that broker."""

    spent = False
    now_ms = 0

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent: GroupOffset | None = None

    def init(self, _: str) -> None:
        self._broker.before_init()
        self._broker.inits += 1

    def begin(self) -> None:
        self._broker.now_ms.append(self.now_ms)

    def produce(self, records: Any) -> None:
        self._broker.placed += [record[3] for _, record in records if record[0] == "m"]

    def flush(self) -> list[Undelivered]:
        unanswered, self._broker.unanswered = self._broker.unanswered, None
        if unanswered is not None:
            raise RecordsUnanswered("1 record was not answered for", [(*unanswered, 1)])
        faults, self._broker.faults = self._broker.faults, []
        return faults

    def send_offsets(self, offsets: list[GroupOffset], _: object) -> None:
        (self._sent,) = offsets

    def commit(self) -> None:
        takes_effect, error = self._broker.ending
        self._broker.ending = (True, None)
        if takes_effect:
            self._broker.offset = self._sent
        if error is not None:
            raise error("a slow answer")

    def leaders(self, _: str) -> dict[int, int]:
        return self._broker.leaders

    def discard(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(claims, "offsets_of", made.found)
    monkeypatch.setattr(partition_writer, "producer_of", lambda *_: Producer(made))
    monkeypatch.setattr(partition_writer, "group_metadata", lambda *_: None)
    return made


@pytest.fixture
def writer(broker: Broker) -> PartitionWriter:
    broker.commit_as("term:claim")
    made = PartitionWriter(SETTINGS, 0, "term", CrashPoints(None, 0))
    assert made.open() == 3
    return made


def test_a_transaction_commits_its_offset_term_and_time(broker: Broker, writer: PartitionWriter) -> None:
    assert writer.write(MARK, 1_000) == Committed()
    assert broker.offset is not None
    assert broker.offset.offset == 5
    assert broker.offset.metadata.startswith("term:")
    assert broker.now_ms == [1_000]


@pytest.mark.parametrize("error", [CommitUnknown, OffsetsUnknown])
@pytest.mark.parametrize("effect", [True, False])
def test_an_unknown_commit_is_decided_by_the_offsets_metadata(
    broker: Broker, writer: PartitionWriter, error: type[Exception], effect: bool
) -> None:
    broker.ending = (effect, error)
    assert writer.write(MARK, 1) == (Committed() if effect else Undone(why="a slow answer"))
    assert broker.inits == 2, "a new producer ended it"
    assert writer.write(MARK, 1) == Committed(), "it goes on"


def test_another_attempts_write_leaves_an_unknown_commit_undecided(broker: Broker, writer: PartitionWriter) -> None:
    broker.ending = (True, CommitUnknown)
    produced = Producer.commit

    def then_another(self: Producer) -> None:
        try:
            produced(self)
        finally:
            broker.commit_as("term:another:0", offset=6)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Producer, "commit", then_another)
        with pytest.raises(ProducerFenced, match="another attempt at this shard"):
            writer.write(MARK, 1)
    assert broker.inits == 1, "no producer was fenced"


def test_another_attempt_that_writes_while_this_one_fences_is_seen(broker: Broker, writer: PartitionWriter) -> None:
    broker.ending = (False, CommitUnknown)
    broker.before_init = lambda: broker.commit_as("term:another:0")
    with pytest.raises(ProducerFenced):
        writer.write(MARK, 1)


def test_another_leaders_claim_ends_the_writer(broker: Broker, writer: PartitionWriter) -> None:
    broker.ending = (False, CommitUnknown)
    broker.before_init = lambda: broker.commit_as("newer:claim")
    with pytest.raises(Superseded, match="its term is newer"):
        writer.write(MARK, 1)
    fenced = broker.inits
    with pytest.raises(Superseded):
        PartitionWriter(SETTINGS, 0, "term", CrashPoints(None, 0)).open()
    assert broker.inits == fenced, "no producer is fenced without a claim"


def test_an_unclaimed_partition_is_taken(broker: Broker) -> None:
    broker.offset = None
    made = PartitionWriter(SETTINGS, 0, "term", CrashPoints(None, 0))
    assert made.open() is None
    assert made.write(MARK, 1) == Committed()


def test_a_stopped_leaders_late_claim_is_taken_back(broker: Broker) -> None:
    broker.commit_as("term:claim")
    broker.other = GroupOffset(topic="k", partition=1, offset=8, metadata="older:claim")
    made = PartitionWriter(SETTINGS, 1, "term", CrashPoints(None, 0))
    assert made.open() == 8, "our claim on partition 0 decides"
    broker.commit_as("newer:claim")
    with pytest.raises(Superseded, match="its term is newer"):
        PartitionWriter(SETTINGS, 1, "term", CrashPoints(None, 0)).open()


REDELIVERED = Transaction(
    offset=5, fates=(Redelivered(marker=Marker(type=MarkerType.START, message_id=MessageId(0, 1), key=b"q")),)
)


@pytest.mark.parametrize("answers", [True, False])
def test_a_failing_message_partition_is_replaced_by_another(
    broker: Broker, writer: PartitionWriter, answers: bool
) -> None:
    broker.leaders = {0: 1, 1: 2, 2: -1}
    for _ in range(20):
        assert writer.write(REDELIVERED, 1) == Committed()
    assert set(broker.placed) == {0, 1}, "a partition without a leader is not used"
    if answers:
        broker.faults = [fault(Refusal.TRANSIENT, partition=0)]
    else:
        broker.unanswered = ("m", 0)
    assert isinstance(writer.write(REDELIVERED, 1), Undone)
    broker.placed.clear()
    for _ in range(20):
        assert writer.write(REDELIVERED, 1) == Committed()
    assert set(broker.placed) == {1}


def fault(refusal: Refusal, topic: str = "m", partition: int = -1) -> Undelivered:
    return Undelivered(refusal=refusal, why="no", topic=topic, partition=partition)


def test_a_refused_message_is_reported_and_the_writer_continues(broker: Broker, writer: PartitionWriter) -> None:
    start = Marker(type=MarkerType.START, message_id=MessageId(0, 1), key=b"q")
    for refusal in (Refusal.SIZE, Refusal.ROW):
        broker.faults = [fault(refusal)]
        assert writer.write(Transaction(offset=5, fates=(Redelivered(marker=start),)), 1) == Refused(
            why="no", kind=RefusedKind.MESSAGE
        )
    assert writer.write(MARK, 1) == Committed()


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (fault(Refusal.SIZE, "k"), RecordRefused),
        (fault(Refusal.SIZE, "m.dead"), RecordRefused),
        (fault(Refusal.TIME), ProducerProblem),
        (fault(Refusal.FENCED), ProducerFenced),
        (fault(Refusal.TRANSIENT, "k"), ProducerProblem),
    ],
)
def test_a_record_needed_by_the_tracker_is_not_given_up(
    broker: Broker, writer: PartitionWriter, found: Undelivered, problem: type[Exception]
) -> None:
    broker.faults = [found]
    with pytest.raises(problem):
        writer.write(MARK, 1)
