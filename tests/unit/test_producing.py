"""Records that are produced from columns are treated like records that are produced one by one."""

from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from hypothesis import example, given
from hypothesis import strategies as st

from thresher.kafka.refusal import Refusal
from thresher.kafka.transactional import TransactionalProducer, Undelivered

GOOD, FULL, REFUSED, ODD = range(4)
NOW = 1_700_000_000_000


@dataclass
class Client:
    """A client with a queue of three records. A record's value can make it fail."""

    taken: list[tuple[Any, ...]] = field(default_factory=list)
    waiting: int = 0
    flushes: int = 0

    def produce(self, *arguments: Any) -> None:
        kind = arguments[1][0]
        if kind == REFUSED:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if kind == ODD:
            raise TypeError("no such thing")
        if kind == FULL and self.waiting:
            raise BufferError("full")
        self.taken.append(arguments)
        self.waiting += 1

    def flush(self, _seconds: float) -> int:
        self.flushes += 1
        self.waiting = 0
        return 0

    def poll(self, _seconds: float) -> int:
        return 0

    def __len__(self) -> int:
        return self.waiting


def producer() -> tuple[TransactionalProducer, Client]:
    client = Client()
    made = TransactionalProducer("id", {}, make=lambda _: client)
    made.now_ms = NOW
    return made, client


@given(st.lists(st.sampled_from([GOOD, GOOD, FULL, REFUSED, ODD])), st.integers(1, 3))
@example([REFUSED, ODD], 1)
@example([GOOD, FULL], 2)
def test_columns_are_produced_like_single_records(kinds: list[int], at_once: int) -> None:
    records = [
        (f"topic-{number}", bytes([kind, number]), b"key", number % 3 - 1, 0, [("name", b"value")])
        for number, kind in enumerate(kinds)
    ]
    one_by_one, client = producer()
    one_by_one.produce(enumerate(records))
    as_columns, other = producer()
    topics, values, keys, partitions, _, headers = [list(each) for each in zip(*records, strict=True)] or [[]] * 6
    as_columns.produce_columns(topics, values, keys, partitions, headers, at_once=at_once)
    assert other.taken == client.taken
    assert as_columns.unhandled_faults == one_by_one.unhandled_faults
    assert {fault.place for fault in as_columns.unhandled_faults} == {
        place for place, kind in enumerate(kinds) if kind in {REFUSED, ODD}
    }
    assert other.flushes == client.flushes


def test_places_count_from_the_first() -> None:
    made, client = producer()
    made.produce_columns(["t", "u"], [bytes([GOOD]), bytes([ODD])], [None, None], [-1, -1], [None, None], first=7)
    assert made.unhandled_faults == (
        Undelivered(refusal=Refusal.ROW, why="it cannot be a record: no such thing", topic="u", place=8),
    )
    assert client.taken == [("t", bytes([GOOD]), None, -1, None, None, NOW, None)]
