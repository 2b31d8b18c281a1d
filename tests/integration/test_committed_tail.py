"""The last committed records of a progress partition, and trimming the records before them."""

import time
from functools import partial
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.servers import create_topic
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail, Opener, TailGone, TailRecord, TailUnread, opener
from thresher.kafka.producer_problem import ProducerProblem
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer

# Longer than any stall of a busy machine.
PATIENT = TransactionTimeouts(
    transaction_seconds=120.0,
    message_seconds=120.0,
    flush_seconds=60.0,
    socket_seconds=120.0,
    answer_seconds=60.0,
    init_seconds=60.0,
)


# Waits for the broker longer than any stall of a busy machine.
patient_tail = partial(CommittedTail, request_seconds=60.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits, so that a stalling machine makes no commit uncertain and ends no transaction."""
    monkeypatch.setattr(TransactionTimeouts, "certain_seconds", property(lambda _: 60.0))


@pytest.fixture
def topic(stack: Stack, topic_prefix: str) -> str:
    admin, name = Admin(stack.kafka.bootstrap), f"{topic_prefix}tail"
    create_topic(admin, name)
    return name


def config(stack: Stack) -> dict[str, Any]:
    return {"bootstrap.servers": stack.kafka.bootstrap}


def opened(stack: Stack, topic: str, name: str) -> TransactionalProducer:
    producer = TransactionalProducer(f"{topic}-{name}", config(stack), timeouts=PATIENT)
    producer.init(topic)
    return producer


def commit(producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    producer.begin()
    for value in values:
        producer.produce([(0, (topic, value, None, 0, 0, None))])
    assert producer.flush() == []
    producer.commit()


def value(record: TailRecord | None) -> bytes | None:
    return None if record is None else record.value


def test_the_last_committed_record_is_found_despite_aborted_ones(stack: Stack, topic: str) -> None:
    with patient_tail(topic, 0, config(stack)) as tail:
        assert tail.last() is None
    producer = opened(stack, topic, "a")
    commit(producer, topic, b"first")
    commit(producer, topic, b"", b"second")
    for _ in range(20):
        commit(producer, topic, b"")
    bare = Producer({**config(stack), "transactional.id": f"{topic}-bare"})
    bare.init_transactions(60)
    bare.begin_transaction()
    bare.produce(topic, b"aborted", partition=0)
    bare.flush()
    bare.abort_transaction(60)
    with patient_tail(topic, 0, config(stack)) as tail:
        assert value(tail.last()) == b"second"
        assert list(tail.whole()) == [b"first", b"second"]


NOBODYS = Opener(b"nobody's")


def commit_opener(producer: TransactionalProducer, topic: str) -> Opener:
    opened, record = opener(topic, 0)
    producer.begin()
    producer.produce([(0, record)])
    assert producer.flush() == []
    producer.commit()
    return opened


def test_keys_of_empty_records_are_read_too(stack: Stack, topic: str) -> None:
    producer = opened(stack, topic, "a")
    written = ((b"0", b""), (b"1", b"first"), (b"2", b""), (b"3", b"last"), (b"4", b""), (None, b""), (b"5", b""))
    for key, value in written:
        producer.begin()
        producer.produce([(0, (topic, value, key, 0, 0, None))])
        assert producer.flush() == []
        producer.commit()
    with patient_tail(topic, 0, config(stack)) as tail:
        assert [(record.key, record.value) for record in next(tail.windows())] == [
            (key, value) for key, value in written if key or value
        ]
        last = tail.last()
        assert last is not None
        assert (last.key, last.value) == (b"3", b"last")
        assert list(tail.whole()) == [b"first", b"last"]


def test_an_open_transaction_hides_a_later_opener(stack: Stack, topic: str) -> None:
    commit(opened(stack, topic, "a"), topic, b"first")
    other = opened(stack, topic, "b")
    other.begin()
    other.produce([(0, (topic, b"open", None, 0, 0, None))])
    other.flush()
    mine = opened(stack, topic, "c")
    commit(mine, topic, b"behind it")
    fenced = partial(patient_tail, topic, 0, config(stack), commit_opener=partial(commit_opener, mine, topic))
    # It waits for an end that it never reaches.
    with fenced(request_seconds=2.0) as tail, pytest.raises(TailUnread):
        tail.last()
    with patient_tail(topic, 0, config(stack)) as tail:
        assert value(tail.last()) == b"first"
    other.commit()
    with fenced() as tail:
        assert value(tail.last()) == b"behind it"


def test_reading_ends_exactly_at_the_opener(stack: Stack, topic: str) -> None:
    producer = opened(stack, topic, "a")
    commit(producer, topic, b"before the end was sampled")

    def late() -> Opener:
        # Simulates a broker that did not know of these records when it was asked for the end.
        for number in range(30):
            commit(producer, topic, b"%d" % number)
        opened = commit_opener(producer, topic)
        commit(producer, topic, b"behind it")
        return opened

    with patient_tail(topic, 0, config(stack), commit_opener=late) as tail:
        assert value(tail.last()) == b"29"
        assert list(tail.whole()) == [b"before the end was sampled", *(b"%d" % number for number in range(30))]


def test_a_missing_opener_is_an_error(stack: Stack, topic: str) -> None:
    commit(opened(stack, topic, "a"), topic, b"first")
    impatient = patient_tail(topic, 0, config(stack), commit_opener=lambda: NOBODYS, request_seconds=1.0)
    with impatient as tail, pytest.raises(TailUnread):
        tail.last()


def test_an_end_sampled_before_the_opener_is_enough(stack: Stack, topic: str) -> None:
    producer = opened(stack, topic, "a")
    commit(producer, topic, b"first")
    claimed: list[Opener] = []
    with patient_tail(topic, 0, config(stack), commit_opener=lambda: claimed[0]) as tail:
        tail.sample()
        claimed.append(commit_opener(producer, topic))
        for _ in range(30):
            commit_opener(producer, topic)
        assert value(tail.last()) == b"first"


def test_a_record_with_only_the_openers_key_is_skipped(stack: Stack, topic: str) -> None:
    producer = opened(stack, topic, "a")

    def claimed() -> Opener:
        for key, headers in ((b"key", None), (None, None), (b"key", [("seal", b"ours")])):
            producer.begin()
            producer.produce([(0, (topic, b"" if key else b"later", key, 0, 0, headers))])
            assert producer.flush() == []
            producer.commit()
        return Opener(b"key", (("seal", b"ours"),))

    with patient_tail(topic, 0, config(stack), commit_opener=claimed) as tail:
        assert value(tail.last()) == b"later"


def test_trimming_leaves_the_last_committed_record(stack: Stack, topic: str) -> None:
    producer = opened(stack, topic, "a")
    for number in range(5):
        commit(producer, topic, str(number).encode())
    with patient_tail(topic, 0, config(stack)) as tail:
        last = tail.last()
    assert last is not None
    assert last.value == b"4"
    keep = last.offset
    time.sleep(0.05)
    moment = int(time.time() * 1000)
    # A record that is newer than the moment, and never committed.
    late = opened(stack, topic, "b")
    late.begin()
    late.produce([(0, (topic, b"never", None, 0, 0, None))])
    late.flush()
    opened(stack, topic, "b")
    Admin(stack.kafka.bootstrap).trim(topic, {0: keep}, moment)
    with patient_tail(topic, 0, config(stack)) as tail:
        assert list(tail.whole()) == [b"4"]


def test_removed_records_are_not_mistaken_for_an_empty_partition(stack: Stack, topic: str) -> None:
    commit(opened(stack, topic, "a"), topic, b"known")
    client = AdminClient(config(stack))
    for future in client.delete_records([TopicPartition(topic, 0, OFFSET_END)], request_timeout=60).values():
        future.result()
    with patient_tail(topic, 0, config(stack)) as tail, pytest.raises(TailGone, match="lost its records"):
        tail.last()
    # After new progress the partition can be read again, as after `adopt`.
    commit(opened(stack, topic, "a"), topic, b"next")
    with patient_tail(topic, 0, config(stack)) as tail:
        assert value(tail.last()) == b"next"


def test_a_refused_record_prevents_the_commit(stack: Stack, topic: str) -> None:
    producer = TransactionalProducer(f"{topic}-small", {**config(stack), "message.max.bytes": 2000}, timeouts=PATIENT)
    producer.init(topic)
    producer.begin()
    producer.produce([(0, (topic, b"fits", None, 0, 0, None))])
    assert producer.flush() == []
    producer.produce([(1, (topic, b"x" * 5000, None, 0, 0, None))])
    with pytest.raises(ProducerProblem, match="refused"):
        producer.commit()
    opened(stack, topic, "small")
    with patient_tail(topic, 0, config(stack)) as tail:
        assert tail.last() is None
