"""Foreign records in a relay's progress topic, and rows for another relay's progress topic."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tests.peak_memory import peak_mb
from tests.relay.relaying import Place, taken_over
from tests.servers import create_topic
from thresher.delivery.claims import Claim
from thresher.delivery.fate import SENT
from thresher.delivery.names import progress_topic
from thresher.delivery.progress_topic.progress_log import ProgressLog
from thresher.delivery.progress_topic.seal import Seal
from thresher.devstack.stack import Stack
from thresher.kafka.committed_tail import CommittedTail
from thresher.outbox import Message
from thresher.relay.protocol.progress import Origin, Progress, decode, encode
from thresher.spark.session.session import Session

# The libraries take half of it.
MOST_MB = 350
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.fixture
def other(at: Place) -> Place:
    """Return another outbox in the same database."""
    return Place(at.stack, at.dsn, f"{at.prefix}b-", table="second")


def numbered(at: Place, numbers: Iterable[int]) -> list[Message]:
    return [Message(topic=at.topic, key="k", value=str(number)) for number in numbers]


def numbers(messages: Iterable[Any]) -> list[int]:
    return [int(message.value()) for message in messages]


def progress_of_all(at: Place) -> bytes:
    """Return the progress record of an earlier version that has sent all pending rows."""
    ((outbox_id,),) = at.sql("SELECT outbox_id FROM thresher_relay WHERE name = %s", at.settings().name)
    rows = at.sql("SELECT id, create_time FROM outbox ORDER BY id")
    return encode(
        Progress(
            origin=Origin(outbox_id=str(outbox_id), system_id="", incarnation="", term="", shard=0),
            number=9,
            ids=[id_ for id_, _ in rows],
            create_times=[(time - EPOCH) // timedelta(microseconds=1) for _, time in rows],
            fates=[SENT] * len(rows),
        )
    )


def write(
    at: Place,
    *values: bytes,
    key: bytes = b"",
    seal: Callable[[bytes, bytes], Any] = lambda *_: None,
    codec: str = "none",
) -> None:
    """Write records to the relay's progress partition, each in a batch of its own if they are compressed."""
    producer = Producer(
        {"bootstrap.servers": at.stack.kafka.bootstrap, "compression.type": codec, "message.max.bytes": 1_000_000_000}
    )
    refused: list[Any] = []
    for value in values:
        producer.produce(
            progress_topic(at.settings().name),
            value,
            key,
            partition=0,
            headers=seal(key, value),
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        if codec != "none":
            producer.flush(60)
    assert producer.flush(60) == 0
    assert refused == []


def test_foreign_progress_records_neither_end_relays_nor_remove_rows(at: Place) -> None:
    at.stash(*numbered(at, range(50)))
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
    at.stash(*numbered(at, range(50, 100)))
    forged = progress_of_all(at)
    guessed = Seal(secret="guessed", topic=progress_topic(at.settings().name), partition=0)
    write(at, b"a row of somebody else", forged)
    write(at, forged, seal=guessed.headers)
    # Claims without a valid seal do not count: no attempt waits for their writers.
    claim = Claim(id_index=1, claimant="theirs").encoded()
    write(at, b"", key=claim)
    write(at, b"", key=claim, seal=guessed.headers)
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
        relaying.until(lambda: relaying.total("strangers") >= 3)
        assert numbers(at.read(100)) == list(range(100))
    # The relay's own progress is found behind the foreign records.
    at.stash(*numbered(at, range(100, 110)))
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
        assert relaying.total("strangers") == 0
    assert numbers(at.read(110)) == list(range(110))


def last_progress(topic: str, kafka: dict[str, Any], secret: str) -> None:
    """Read the progress as a shard does that takes over."""
    seal = Seal(secret=secret, topic=topic, partition=0)
    with ProgressLog(CommittedTail(topic, 0, kafka), seal, decode) as log:
        assert log.last() is not None


# The first are 285 MB together, in one answer: a client with its own limits would decompress all of them.
@pytest.mark.parametrize(("codec", "size", "count"), [("zstd", 95_000_000, 3), ("gzip", 5_000_000, 3)])
def test_bombs_in_the_progress_topic_are_passed_unread(at: Place, codec: str, size: int, count: int) -> None:
    at.stash(*numbered(at, range(20)))
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
    at.stash(*numbered(at, range(20, 40)))
    # Each takes a few kilobytes, and several megabytes once it is decompressed, or decoded by Arrow.
    bomb = pa.BufferOutputStream()
    column = pa.Array.from_buffers(pa.int64(), 5_000_000, [None, pa.py_buffer(bytes(40_000_000))])
    with pa.ipc.new_stream(
        bomb, pa.schema([("id", pa.int64())]), options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_batch(pa.record_batch([column], names=["id"]))
    inner = bomb.getvalue().to_pybytes()
    write(at, *[inner] * 8, *[b"x" * size] * count, codec=codec)
    ((secret,),) = at.sql("SELECT secret FROM thresher_relay WHERE name = %s", at.settings().name)
    kafka = {"bootstrap.servers": at.stack.kafka.bootstrap}
    used = peak_mb(last_progress, progress_topic(at.settings().name), kafka, str(secret))
    assert used < MOST_MB
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
        assert numbers(at.read(40)) == list(range(40))
    at.stash(*numbered(at, range(40, 50)))
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
    assert numbers(at.read(50)) == list(range(50))


def test_rows_for_another_relays_progress_topic_are_dead(at: Place, other: Place) -> None:
    theirs = progress_topic(other.settings().name)
    # A producer cannot reserve an application's topic by what it writes.
    shown = f"{at.prefix}shown.progress"
    create_topic(at.admin, shown)
    forging = Producer({"bootstrap.servers": at.stack.kafka.bootstrap})
    forging.produce(shown, b"harm", headers=[("thresher-seal", b"x" * 32)])
    assert forging.flush(60) == 0
    with other.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.up)
        at.stash(Message(topic=shown, key="k", value="the progress of a film"))
        at.stash(*(Message(topic=theirs, key="k", value="harm") for _ in range(30)))
        at.stash(*numbered(at, range(10)))
        with at.relaying(shards=1) as mine:
            mine.until(lambda: at.pending() == 0)
        assert {(kind, reason) for _, kind, reason, *_ in at.dead()} == {
            ("malformed", f"'{theirs}' is a relay's progress topic")
        }
        assert len(at.dead()) == 30
        assert numbers(at.read(10)) == list(range(10))
        assert [message.value() for message in at.read(2, shown)] == [b"harm", b"the progress of a film"]


def test_a_role_without_alter_privilege_gets_the_statement(at: Place) -> None:
    taken_over(at.settings(shards=1))
    at.sql("ALTER TABLE thresher_relay DROP COLUMN secret")
    at.sql("CREATE ROLE relay_role LOGIN PASSWORD 'secret'")
    try:
        at.sql("GRANT ALL ON outbox, outbox_dead, thresher_relay TO relay_role")
        role = psycopg.conninfo.make_conninfo(at.dsn, user="relay_role", password="secret")
        with at.relaying(shards=1, dsn=role) as relaying:
            error = relaying.ended()
        assert "ADD COLUMN IF NOT EXISTS secret" in str(error)
        assert getattr(error, "exit_code", None) == 4
    finally:
        at.sql("DROP OWNED BY relay_role; DROP ROLE relay_role")
