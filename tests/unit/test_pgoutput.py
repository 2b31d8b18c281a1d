"""Messages of Postgres' pgoutput plugin: each kind is decoded, and malformed bytes are refused."""

import struct
from datetime import UTC, datetime

import pytest

from tests.tail import wire
from thresher.core.errors import InvalidInput
from thresher.db.log_names import log_prefix, slot_name
from thresher.db.lsn import lsn_number, lsn_text
from thresher.db.names import InvalidName, TableName
from thresher.db.problem import DatabaseRefused
from thresher.db.shape import Shape
from thresher.outbox.log_message import encode, encode_all
from thresher.tail.chunk import Chunk
from thresher.tail.log_reader import LogReader
from thresher.tail.log_seal import LogKeys
from thresher.tail.log_source import LogSource, TableSource
from thresher.tail.pgoutput import (
    Begin,
    Column,
    Commit,
    Garbled,
    Ignored,
    Insert,
    LogMessage,
    Relation,
    decode,
    keep_alive,
    status_report,
)
from thresher.tail.position import Position

OUTBOX = TableName(table="outbox", schema="app")
TABLE = 16_400


def reader(shape: Shape = Shape.THRESHER, columns: dict[str, int] | None = None, table: str = "outbox") -> LogReader:
    made = LogReader(TableSource(table=OUTBOX, shape=shape))
    made.feed(wire.data(wire.relation(TABLE, "app", table, columns or wire.COLUMNS), 0))
    return made


def taken(made: LogReader) -> Chunk:
    chunk = made.take()
    assert chunk is not None
    return chunk


def transaction(made: LogReader, *rows: list[bytes | None], at: int = 100) -> Chunk:
    made.feed(wire.data(wire.begin(at + 900), at))
    for number, row in enumerate(rows):
        made.feed(wire.data(wire.insert(TABLE, row), at + number))
    made.feed(wire.data(wire.commit(at + 900, at + 950), at + 950))
    return taken(made)


def test_each_kind_of_message_is_decoded() -> None:
    assert decode(wire.begin(5, wire.EPOCH + 9)) == Begin(5, wire.EPOCH + 9, 7)
    assert decode(wire.commit(5, 8, wire.EPOCH + 9)) == Commit(5, 8, wire.EPOCH + 9)
    assert decode(wire.relation(1, "s", "t", {"a": 20})) == Relation(1, "s", "t", (Column("a", 20),))
    assert decode(wire.insert(1, [b"x", None])) == Insert(1, ((ord("b"), b"x"), (ord("n"), None)))
    assert decode(wire.message(9, "p", b"\0c", transactional=False)) == LogMessage(False, 9, "p", b"\0c")
    assert decode(b"T\0\0") == Ignored("T")
    assert decode(wire.relation(1, "", "pg_class", {})) == Relation(1, "pg_catalog", "pg_class", ())


@pytest.mark.parametrize("message", [b"", b"?", b"B", wire.begin(1)[:-1], wire.begin(1) + b"x", b"I\0\0\0\1O\0\0"])
def test_bytes_that_are_no_message_are_garbled(message: bytes) -> None:
    with pytest.raises(Garbled):
        decode(message)


def test_every_truncated_message_is_garbled() -> None:
    for whole in (wire.insert(1, [b"abc", None]), wire.relation(1, "s", "t", {"a": 20}), wire.message(9, "p", b"abc")):
        for size in range(len(whole)):
            with pytest.raises(Garbled):
                decode(whole[:size])


def test_a_status_update_has_the_servers_format() -> None:
    assert struct.unpack(">cQQQqB", status_report(7, 3, wire.EPOCH + 11)) == (b"r", 7, 3, 3, 11, 0)


def test_a_keep_alive_is_decoded() -> None:
    assert keep_alive(wire.keep_alive(77, reply=True)) == (77, True)
    with pytest.raises(Garbled):
        keep_alive(b"k123")


def test_a_row_equals_that_of_a_relay() -> None:
    row = wire.outbox_row(
        4, topic=b"orders", key=None, value=None, names=[b"a", b"b"], contents=[b"1", None], partition=3, timestamp=1,
        created=2_000_000,
    )  # fmt: skip
    chunk = transaction(reader(), row)
    moment = datetime(2000, 1, 1, 0, 0, 2, tzinfo=UTC)
    stamped = datetime(2000, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert chunk.rows == [(4, moment, "orders", None, None, ("a", "b"), (b"1", None), 3, stamped, None)]
    assert chunk.positions == [Position(1000, 100, 0)]
    assert (chunk.ended, chunk.commit_times) == (1050, [wire.EPOCH])


def test_rows_of_one_position_are_counted() -> None:
    made = reader()
    made.feed(wire.data(wire.begin(900), 1))
    for at in (50, 50, 50, 60, 50):
        made.feed(wire.data(wire.insert(TABLE, wire.outbox_row(1)), at))
    chunk = taken(made)
    assert [(each.change, each.place) for each in chunk.positions] == [(50, 0), (50, 1), (50, 2), (60, 0), (50, 0)]
    assert chunk.ended == 0


def test_the_count_starts_over_with_each_transaction() -> None:
    made = reader()
    for commit in (900, 950):
        made.feed(wire.data(wire.begin(commit), 1))
        made.feed(wire.data(wire.insert(TABLE, wire.outbox_row(1)), 50))
        made.feed(wire.data(wire.commit(commit, commit + 10), 1))
    assert taken(made).positions == [Position(900, 50, 0), Position(950, 50, 0)]


def test_an_already_sent_row_is_left_out_but_counted() -> None:
    made = reader()
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(wire.data(wire.insert(TABLE, wire.outbox_row(1, sent=5)), 50))
    made.feed(wire.data(wire.insert(TABLE, wire.outbox_row(2)), 50))
    assert taken(made).positions == [Position(900, 50, 1)]


def test_times_out_of_range_are_clamped() -> None:
    chunk = transaction(
        reader(), wire.outbox_row(1, created=2**63 - 1), wire.outbox_row(2, created=-(2**63)),
        wire.outbox_row(3, timestamp=2**63 - 1), wire.outbox_row(4, timestamp=-wire.EPOCH - 1),
    )  # fmt: skip
    assert [row[1].year for row in chunk.rows] == [9999, 1, 2000, 2000]
    assert [(row[8], row[9]) for row in chunk.rows] == [(None, None)] * 2 + [(None, "timestamp")] * 2


def test_headers_of_more_dimensions_are_a_flaw() -> None:
    row = wire.outbox_row(1)
    row[5] = struct.pack(">iiIiiii", 2, 0, 25, 1, 1, 1, 1) + b"\0\0\0\1a"
    *sendable, more = transaction(reader(), row).rows[0][5:]
    assert sendable == [(), (), None, None, "headers", None]
    assert more == (row[5], row[6], None), "dead rows keep them as the server sent them"


def test_headers_of_three_dimensions_are_kept_as_they_were() -> None:
    row = wire.outbox_row(1)
    items = b"".join(struct.pack(">i", 1) + item for item in (b"a", b"b", b"c", b"d")) + b"\xff\xff\xff\xff\0\0\0\0"
    row[6] = struct.pack(">iiIiiiiii", 3, 1, 17, 1, 1, 3, 1, 2, 1) + items
    assert transaction(reader(), row).rows[0][11] == (row[5], row[6], None)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (2**63 - 1, "infinity"),
        (-(2**63), "-infinity"),
        (-wire.EPOCH - 1, "1969-12-31 23:59:59.999999+00"),
        (63_113_904_000_000_000 * 4, "10000-01-01 00:00:00.000000+00"),
        (-63_113_904_000_000_000, "0001-01-01 00:00:00.000000+00 BC"),
    ],
)
def test_a_timestamp_that_kafka_cannot_hold_is_kept(moment: int, text: str) -> None:
    row = transaction(reader(), wire.outbox_row(1, timestamp=moment)).rows[0]
    assert (row[9], row[11][2]) == ("timestamp", text)


def test_a_message_with_an_invalid_timestamp_is_kept_whole() -> None:
    late = content() + b"\x30" + b"\xff" * 9 + b"\x01"
    made = log_reader()
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(emitted(late))
    row = taken(made).rows[0]
    assert (row[2], row[4], row[9]) == ("", late, "timestamp")


def test_columns_are_found_by_name_and_others_ignored() -> None:
    columns = dict(reversed({**wire.COLUMNS, "more": 600}.items()))
    row = [*wire.outbox_row(7, topic=b"orders"), b"whatever"]
    chunk = transaction(reader(columns=columns), row[::-1])
    assert chunk.rows[0][:5] == (7, datetime(2000, 1, 1, tzinfo=UTC), "orders", b"k", b"v")


def test_an_unknown_column_may_come_as_text() -> None:
    frame = wire.insert(TABLE, wire.outbox_row(7))
    head, columns = frame[:6], struct.unpack_from(">H", frame, 6)[0]
    frame = head + struct.pack(">H", columns + 1) + frame[8:] + b"t" + struct.pack(">I", 3) + b"(1)"
    made = reader(columns={**wire.COLUMNS, "more": 99_999})
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(wire.data(frame, 50))
    assert taken(made).rows[0][0] == 7


def test_a_known_column_must_not_come_as_text() -> None:
    frame = wire.insert(TABLE, wire.outbox_row(7))
    made = reader()
    made.feed(wire.data(wire.begin(900), 1))
    with pytest.raises(Garbled, match="not in binary"):
        made.feed(wire.data(frame[:8] + b"t" + frame[9:], 50))


def test_rows_are_read_while_the_table_is_renamed() -> None:
    made = LogReader(TableSource(table=OUTBOX, number=TABLE))
    made.feed(wire.data(wire.relation(TABLE, "app", "renamed", wire.COLUMNS), 0))
    made.feed(wire.data(wire.relation(TABLE + 1, "app", "other", {"a": 1}), 0))
    assert len(transaction(made, wire.outbox_row(1)).rows) == 1


@pytest.mark.parametrize("missing", [name for name in wire.COLUMNS if name != "leader_id"])
def test_a_missing_column_is_refused(missing: str) -> None:
    with pytest.raises(DatabaseRefused, match=f"no column {missing} of"):
        reader(columns={name: type_ for name, type_ in wire.COLUMNS.items() if name != missing})


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(DatabaseRefused, match=r"kafka_key of .* has a type that the tail cannot read"):
        reader(columns={**wire.COLUMNS, "kafka_key": 25})


def test_other_tables_are_ignored() -> None:
    made = reader(table="inbox", columns={"a": 1})
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(wire.data(wire.insert(TABLE, [b"x"]), 50))
    made.feed(wire.data(wire.relation(TABLE + 1, "other", "outbox", {"a": 1}), 0))
    made.feed(wire.data(wire.insert(TABLE + 1, [b"x"]), 50))
    assert made.take() is None
    made.feed(wire.data(wire.commit(900, 910), 1))
    assert taken(made) == Chunk(ended=910)


def test_goharvest_rows_are_read() -> None:
    columns = {"id": 20, "create_time": 1184, "kafka_topic": 1043, "kafka_key": 1043, "kafka_value": 1043,
               "kafka_header_keys": 1009, "kafka_header_values": 1009, "leader_id": 2950}  # fmt: skip
    row = wire.outbox_row(1, names=[b"a"], contents=[b"b"])[:7]
    chunk = transaction(reader(Shape.GOHARVEST, columns), [*row, None])
    assert chunk.rows[0][2:] == ("t", b"k", b"v", ("a",), (b"b",), None, None, None)


@pytest.mark.parametrize(
    ("key", "partition_key", "chooses"),
    [(b"k", None, None), (b"", None, b""), (b"k", b"p", b"p"), (None, b"", b""), (None, None, None)],
)
def test_deimos_rows_are_read(key: bytes | None, partition_key: bytes | None, chooses: bytes | None) -> None:
    columns = {"id": 20, "topic": 1043, "message": 17, "key": 17, "partition_key": 1043, "created_at": 1114}
    row = [struct.pack(">q", 1), b"t", b"v", key, partition_key, struct.pack(">q", 0)]
    chunk = transaction(reader(Shape.DEIMOS, columns), row)
    assert chunk.rows[0][2:] == ("t", key, b"v", (), (), None, None, None, chooses)


def log_reader() -> LogReader:
    return LogReader(LogSource(outbox=OUTBOX), LogKeys(wire.log_keys))


def content(topic: str = "orders") -> bytes:
    return encode((topic, b"k", b"v", ("a",), (b"1",), 3, None))


def emitted(content: bytes, at: int = 40, prefix: str = "thresher:app.outbox") -> bytes:
    return wire.data(wire.message(at, prefix, wire.sealed(content, prefix, at - 1)), at)


def test_messages_of_the_outbox_become_rows() -> None:
    made = log_reader()
    made.feed(wire.data(wire.begin(900, wire.EPOCH + 5), 1))
    made.feed(emitted(content()))
    chunk = taken(made)
    moment = datetime(2000, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    assert chunk.rows == [(40, moment, "orders", b"k", b"v", ("a",), (b"1",), 3, None, None)]
    assert chunk.positions == [Position(900, 40, 0)]


def test_messages_of_others_are_ignored() -> None:
    made = log_reader()
    made.feed(wire.data(wire.message(30, "thresher:app.outbox", content(), transactional=False), 30))
    made.feed(wire.data(wire.begin(900), 1))
    for prefix in ("thresher:outbox", "thresher:app.outbox2", "", "x"):
        made.feed(emitted(content(), prefix=prefix))
    assert made.take() is None
    assert made.refused == 0


def test_an_unreadable_message_becomes_a_row_that_holds_it() -> None:
    made = log_reader()
    made.feed(wire.data(wire.begin(900), 1))
    for at, rubbish in ((40, b"\x09rubbish"), (50, b"\x02\x05cut"), (60, b"\x02")):
        made.feed(emitted(rubbish, at))
        row = taken(made).rows[0]
        assert (row[0], row[2], row[4], row[9]) == (at, "", rubbish, "message")


def test_messages_of_a_batch_have_places_and_ids_of_their_own() -> None:
    rows = [(f"t{number}", None, None, (), (), None, None) for number in range(3)]
    (batch,) = encode_all(rows)
    made = log_reader()
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(emitted(batch))
    chunk = taken(made)
    assert [(row[0], row[2]) for row in chunk.rows] == [(38, "t0"), (39, "t1"), (40, "t2")]
    assert chunk.positions == [Position(900, 40, place) for place in range(3)]


def test_an_unreadable_message_of_a_batch_spoils_no_other() -> None:
    made = log_reader()
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(emitted(b"\x02\x03\x0a\x01a\x02\xff\xff\x03\x0a\x01b"))
    assert [(row[2], row[4]) for row in taken(made).rows] == [("a", None), ("", b"\x01\xff\xff"), ("b", None)]


def test_a_table_source_reads_no_messages() -> None:
    made = reader()
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(wire.data(wire.message(40, "thresher:app.outbox", content()), 40))
    assert made.take() is None


def test_a_keep_alive_between_transactions_advances_the_idle_position() -> None:
    made = reader()
    made.feed(wire.keep_alive(70))
    assert taken(made) == Chunk(idle_at=70)
    assert made.take() is None


def test_a_keep_alive_inside_a_transaction_advances_nothing() -> None:
    made = reader()
    made.feed(wire.data(wire.begin(900), 1))
    made.feed(wire.keep_alive(800))
    assert made.take() is None
    assert made.received == 800


def test_later_rows_make_a_keep_alive_obsolete() -> None:
    made = reader()
    made.feed(wire.keep_alive(70))
    assert transaction(made, wire.outbox_row(1)).idle_at is None


def test_a_requested_reply_is_remembered_until_it_is_sent() -> None:
    made = reader()
    made.feed(wire.keep_alive(70, reply=True))
    made.feed(wire.keep_alive(71))
    assert made.reply


@pytest.mark.parametrize(
    "frames",
    [
        [b"x"],
        [wire.data(wire.insert(TABLE + 1, [b"x"]), 1)],
        [wire.data(wire.insert(TABLE, wire.outbox_row(1)), 1)],
        [wire.data(wire.begin(900), 1), wire.data(wire.insert(TABLE, [b"x"]), 1)],
        [wire.data(wire.begin(900), 1), wire.data(wire.insert(TABLE, wire.outbox_row(1))[:-9], 1)],
        [wire.data(wire.begin(900), 1), wire.data(wire.insert(TABLE, wire.outbox_row(1)) + b"x", 1)],
        [wire.data(wire.begin(900), 1), wire.data(wire.commit(901, 950), 1)],
        [wire.data(wire.commit(901, 950), 1)],
        [b"w123"],
    ],
)
def test_a_stream_that_makes_no_sense_is_garbled(frames: list[bytes]) -> None:
    made = reader()
    with pytest.raises(Garbled):
        list(map(made.feed, frames))


def test_a_source_without_a_schema_is_refused() -> None:
    made = LogReader(TableSource(table=TableName(table="outbox")))
    with pytest.raises(DatabaseRefused, match="is not known, and the WAL names tables"):
        made.feed(wire.data(wire.relation(TABLE, "app", "outbox", wire.COLUMNS), 0))


def test_positions_are_ordered_by_commit_first() -> None:
    assert Position(1, 99, 9) < Position(2, 1, 0) < Position(2, 1, 1) < Position(2, 2, 0)
    assert str(Position(2**32 + 10, 0xAB, 3)) == "1/A:0/AB:3"


def test_positions_are_written_as_postgres_does() -> None:
    assert lsn_text(lsn_number("16/B374D848")) == "16/B374D848"
    for text in ("", "1", "1/", "/1", "x/1", "1/100000000", "-1/2"):
        with pytest.raises(InvalidInput):
            lsn_number(text)


def test_an_outbox_has_a_prefix_and_a_slot() -> None:
    assert log_prefix(TableName(table="outbox")) == "thresher:outbox"
    assert log_prefix(OUTBOX) == "thresher:app.outbox"
    with pytest.raises(InvalidName, match="dot"):
        log_prefix(TableName(table="app.outbox"))
    assert slot_name(TableName(table="outbox")) == "thresher_outbox"
    # The slot of a tail without a schema, or with another schema, does not serve a writer with a schema.
    schemas = [TableName(table="outbox"), OUTBOX, TableName(table="outbox", schema="app2")]
    assert len({slot_name(each) for each in [*schemas, TableName(table="app_outbox")]}) == 4
    assert slot_name(OUTBOX).startswith("thresher_app_outbox_")
    names = {slot_name(TableName(table=name)) for name in ("Outbox", "oUtbox", "öutbox", "x" * 58, "x" * 57, "o-x")}
    assert len(names) == 6
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() and name == name.lower() for name in names)
