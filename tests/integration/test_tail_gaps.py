"""Rows that the WAL does not hold are neither treated as published nor deleted, and the tail reports them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.tail.tailing import TailPlace
from thresher.db.problem import DatabaseRefused
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session
from thresher.tail.leader import switching
from thresher.tail.leader.take_over import take_over
from thresher.tail.problem import LogLost, OtherReader

Places = Callable[..., TailPlace]


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Iterator[Places]:
    made: list[TailPlace] = []

    def make(**options: Any) -> TailPlace:
        made.append(TailPlace(stack, dsn, topic_prefix, **options))
        return made[-1]

    yield make
    for each in made:
        each.drop_slot()


def stash(at: TailPlace, *values: str) -> None:
    at.stash(*(Message(topic=at.topic, key="k", value=value) for value in values))


def values(messages: Any) -> list[bytes]:
    return [message.value() for message in messages]


# Each pair lets inserts bypass the publication or the table's name, and then repairs it.
CHANGES = {
    "left out": ["ALTER PUBLICATION {slot} DROP TABLE outbox", "ALTER PUBLICATION {slot} ADD TABLE outbox"],
    "no inserts": [
        "ALTER PUBLICATION {slot} SET (publish = 'update')",
        "ALTER PUBLICATION {slot} SET (publish = 'insert')",
    ],
    "made anew": ["DROP PUBLICATION {slot}", "CREATE PUBLICATION {slot} FOR TABLE outbox WITH (publish = 'insert')"],
    "another table": [
        "ALTER TABLE outbox RENAME TO earlier; CREATE TABLE outbox (LIKE earlier INCLUDING ALL)",
        "ALTER PUBLICATION {slot} ADD TABLE outbox",
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_publication_changed_under_a_tail_ends_it(place: Places, change: list[str]) -> None:
    at = place()
    with at.tailing() as tailing:
        stash(at, "1")
        at.read(1)
        confirmed = at.found_slot().confirmed  # type: ignore[union-attr]
        at.sql(change[0].format(slot=at.slot))
        stash(at, "2")
        at.sql(change[1].format(slot=at.slot))
        error = tailing.ended()
    assert isinstance(error, LogLost), error
    assert error.exit_code == 4
    assert "was changed" in str(error)
    assert "can be inserted again" in str(error)
    # A restart does not go on beyond the missing rows either.
    with at.tailing() as tailing:
        assert isinstance(tailing.ended(), LogLost)
    # The slot does not move back.
    assert at.found_slot().confirmed >= (confirmed or 0)  # type: ignore[union-attr, operator]


def test_a_publication_changed_while_no_tail_ran_is_noticed(place: Places) -> None:
    at = place()
    with at.tailing() as tailing:
        stash(at, "1")
        at.read(1)
        tailing.until(lambda: tailing.total("relayed") == 1)
    at.sql(f"ALTER PUBLICATION {at.slot} DROP TABLE outbox")
    stash(at, "2")
    with pytest.raises(LogLost, match=r"are never sent.*ALTER PUBLICATION"):
        take_over(at.settings())
    at.sql(f"ALTER PUBLICATION {at.slot} ADD TABLE outbox")
    with at.tailing() as tailing:
        error = tailing.ended()
    assert isinstance(error, LogLost)
    assert "was changed" in str(error)
    # As `thresher tail adopt` does.
    at.sql("UPDATE thresher_relay SET progress_topic_id = NULL")
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        stash(at, "3")
        assert values(at.read(2)) == [b"1", b"3"]


def test_rows_written_under_another_table_name_are_published(place: Places) -> None:
    at = place()
    at.sql("ALTER TABLE outbox RENAME TO other")
    at.sql("INSERT INTO other (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', 'renamed')", at.topic)
    at.sql("ALTER TABLE other RENAME TO outbox")
    with at.tailing():
        assert values(at.read(1)) == [b"renamed"]


def test_a_recreated_slot_prevents_leaving(place: Places) -> None:
    at = place()
    with at.tailing() as tailing:
        stash(at, "1")
        at.read(1)
        tailing.until(lambda: tailing.total("relayed") == 1)
    at.drop_slot()
    stash(at, "2")
    at.create_slot()
    with pytest.raises(LogLost, match="made again"):
        switching.leave(at.settings())
    assert at.pending() == 2


def test_an_outbox_that_no_tail_read_prevents_leaving(place: Places) -> None:
    at = place()
    stash(at, "1")
    at.drop_slot()
    at.create_slot()
    with pytest.raises(OtherReader, match="no tail named"):
        switching.leave(at.settings())
    assert at.pending() == 1


def test_rows_from_before_the_slot_are_not_deleted(place: Places) -> None:
    at = place()
    at.drop_slot()
    stash(at, "before")
    at.create_slot()
    with at.tailing(keep_seconds=0.0) as tailing:
        tailing.until(lambda: tailing.up)
        stash(at, "1")
        at.read(1)
        tailing.until(lambda: at.pending() == 1)
        time.sleep(2)
        assert at.sql("SELECT kafka_value FROM outbox") == [(b"before",)]
    # A later tail knows it too.
    with at.tailing(keep_seconds=0.0) as tailing:
        tailing.until(lambda: tailing.up)
        stash(at, "2")
        at.read(2)
        tailing.until(lambda: at.pending() == 1)
        time.sleep(2)
        assert at.sql("SELECT kafka_value FROM outbox") == [(b"before",)]


def test_rows_that_missed_the_publication_before_any_tail_stay(place: Places) -> None:
    at = place()
    at.sql(f"ALTER PUBLICATION {at.slot} DROP TABLE outbox")
    stash(at, "gone by")
    at.sql(f"ALTER PUBLICATION {at.slot} ADD TABLE outbox")
    with at.tailing(keep_seconds=0.0) as tailing:
        tailing.until(lambda: tailing.up)
        stash(at, "1")
        assert values(at.read(1)) == [b"1"]
        tailing.until(lambda: at.pending() == 1)
        time.sleep(2)
        assert at.sql("SELECT kafka_value FROM outbox") == [(b"gone by",)]


def test_rows_from_before_the_slot_prevent_leaving(place: Places) -> None:
    at = place()
    at.drop_slot()
    stash(at, "before")
    at.create_slot()
    # Rows that were written after the slot was made are in its WAL.
    stash(at, "1")
    with at.tailing() as tailing:
        assert values(at.read(1)) == [b"1"]
        tailing.until(lambda: tailing.total("relayed") == 1)
    with pytest.raises(OtherReader, match=r"1 rows of .* were written before"):
        switching.leave(at.settings())
    assert at.pending() == 2
    at.sql("DELETE FROM outbox WHERE kafka_value = 'before'")
    assert switching.leave(at.settings()) == 1


def test_trimming_keeps_up_with_publishing(place: Places) -> None:
    at = place()
    count = 24_000
    with at.tailing(keep_seconds=0.0) as tailing:
        tailing.until(lambda: tailing.up)
        # Rows that are due later come first in the table.
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_value, create_time) "
            "SELECT %s, 'x', now() + interval '1 day' * (n <= 12000)::int FROM generate_series(1, %s) n",
            at.topic,
            count,
        )
        at.read(count, seconds=60)
        began = time.monotonic()
        tailing.until(lambda: at.pending() == 12_000)
        assert time.monotonic() - began < 15


def test_leaving_reads_the_log_before_writers_wait(place: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    at = place()
    with at.tailing() as tailing:
        stash(at, "1")
        at.read(1)
        tailing.until(lambda: tailing.total("relayed") == 1)
    read_to, writers_waited = switching._read_to, list[bool]()

    def looking(*args: Any, **options: Any) -> None:
        ask = "SELECT count(*) FROM pg_locks WHERE mode = 'ShareLock' AND relation = 'outbox'::regclass"
        writers_waited.append(at.sql(ask) == [(1,)])
        read_to(*args, **options)

    monkeypatch.setattr(switching, "_read_to", looking)
    assert switching.leave(at.settings()) == 1
    assert writers_waited == [False, True]


def test_a_missing_column_says_which_rows_are_lost(place: Places) -> None:
    at = place()
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.sql("ALTER TABLE outbox RENAME COLUMN kafka_key TO other")
        at.sql("INSERT INTO outbox (kafka_topic) VALUES (%s)", at.topic)
        error = tailing.ended()
    assert isinstance(error, DatabaseRefused)
    assert "thresher tail slot create" in str(error)


def test_unpublished_rows_of_any_age_stay(place: Places) -> None:
    at = place()
    with at.tailing(keep_seconds=0.0, limits={"grace_seconds": 600}) as tailing, psycopg.connect(at.dsn) as writer:
        tailing.until(lambda: tailing.up)
        at.outbox.stash(writer, Message(topic=f"{at.prefix}missing", key="k", value="waits"))
        writer.commit()
        stash(at, "1")
        at.read(1)
        time.sleep(3)
        assert b"waits" in {value for (value,) in at.sql("SELECT kafka_value FROM outbox")}
