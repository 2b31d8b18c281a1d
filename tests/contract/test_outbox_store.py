"""The contract of every outbox store: Postgres in each table shape, and the property tests' table model."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pytest

from tests.contract.model_store import ModelStore, StoredMessage, database
from tests.processes import eventually
from thresher.core.errors import InvalidInput, Superseded
from thresher.db.control import ControlRow, NewControlRow
from thresher.db.names import TableName
from thresher.db.outbox_store import DeadFate, Fates, OutboxStore, PendingReader, Settling, StoreSession, Wanted
from thresher.db.postgres.control import ControlTable
from thresher.db.postgres.store import PostgresStore
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.shape import BUCKETS, Shape, bucket_of
from thresher.db.waits import Waits
from thresher.devstack.stack import Stack
from thresher.outbox import create_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OUTBOX = TableName(table="outbox", schema="public")
RELAY, OTHER_RELAY = "relay", "another"
TERM, OLD_TERM = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
MINE, OTHERS = uuid.UUID(int=3), uuid.UUID(int=4)
NEW_ROW = NewControlRow(
    name=RELAY, outbox=OUTBOX.quoted(), outbox_id=str(uuid.UUID(int=5)), system_id="s", term=TERM, mode="m", shards=2
)


class Place(Protocol):
    """An outbox and its store."""

    store: OutboxStore

    def write(self, id_: int, key: bytes | None = b"k", *, day: int = 1, topic: str = "t") -> None:
        """Commit a row with this id, created on this day of January."""
        ...

    def pending(self) -> dict[int, int]:
        """Return ids and create times of the pending rows."""
        ...

    def replace_table(self) -> None:
        """Replace the outbox by another table with the same rows."""
        ...


class ModelPlace:
    """In the table model."""

    def __init__(self) -> None:
        self._database = database(OUTBOX)
        self.store: OutboxStore = ModelStore(self._database)

    def write(self, id_: int, key: bytes | None = b"k", *, day: int = 1, topic: str = "t") -> None:
        message = StoredMessage(topic=topic, key=key, value=b"value", headers=(("h", b"1"),))
        self._database.tables.put(id_, created(day), message)

    def pending(self) -> dict[int, int]:
        return {id_: time for id_, (time, _) in self._database.tables.outbox.items()}

    def replace_table(self) -> None:
        self._database.tables = self._database.tables.snapshot()


class PostgresPlace:
    """In a Postgres database. `connection` commits each statement."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any], shape: Shape, settling: Settling) -> None:
        self._connection, self.shape, self._settling = connection, shape, settling
        self.store: OutboxStore = PostgresStore(dsn, TableName(table="outbox"), shape, settling)

    def write(self, id_: int, key: bytes | None = b"k", *, day: int = 1, topic: str = "t") -> None:
        if self.shape is Shape.DEIMOS:
            self._sql(
                "INSERT INTO outbox (id, created_at, updated_at, topic, key, message)"
                " VALUES (%(id)s, %(at)s AT TIME ZONE 'UTC', now(), %(topic)s, %(key)s, 'value')",
                {"id": id_, "at": EPOCH + timedelta(microseconds=created(day)), "topic": topic, "key": key},
            )
            return
        text = self.shape is Shape.GOHARVEST
        values: list[Any] = ["k" if key is None else key.decode(), "value", ["1"]] if text else [key, b"value", [b"1"]]
        self._sql(
            "INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_values, "
            "kafka_header_keys) VALUES (%s, %s, %s, %s, %s, %s, '{h}')",
            [id_, EPOCH + timedelta(microseconds=created(day)), topic, *values],
        )

    def pending(self) -> dict[int, int]:
        stamped = "WHERE dispatched_time IS NULL" if self._settling is Settling.STAMP else ""
        time = "created_at AT TIME ZONE 'UTC'" if self.shape is Shape.DEIMOS else "create_time"
        return {id_: micros(time) for id_, time in self._sql(f"SELECT id, {time} FROM outbox {stamped}")}

    def replace_table(self) -> None:
        self._sql("ALTER TABLE outbox RENAME TO before; CREATE TABLE outbox (LIKE before INCLUDING ALL)", None)
        columns = self._sql(
            "SELECT string_agg(column_name, ',') FROM information_schema.columns "
            "WHERE table_name = 'outbox' AND is_generated = 'NEVER'"
        )[0][0]
        self._sql(f"INSERT INTO outbox ({columns}) SELECT {columns} FROM before", None)

    def _sql(self, query: str, values: Sequence[Any] | dict[str, Any] | None = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def created(day: int) -> int:
    """Return a day of January, in microseconds since 1970."""
    return micros(datetime(2026, 1, day, tzinfo=UTC))


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


POSTGRES = [
    pytest.param((Shape.THRESHER, Settling.DELETE), id="postgres"),
    pytest.param((Shape.THRESHER, Settling.STAMP), id="postgres stamps"),
    pytest.param((Shape.GOHARVEST, Settling.DELETE), id="goharvest's shape"),
    pytest.param((Shape.DEIMOS, Settling.DELETE), id="Deimos' shape"),
]


@pytest.fixture(scope="module")
def databases(stack: Stack) -> Iterator[Callable[[Shape], str]]:
    """Return a function that gives a database for outboxes of a shape: one for all tests, since making one is slow."""
    made: dict[Shape, str] = {}

    def database_of(shape: Shape) -> str:
        if shape not in made:
            made[shape] = stack.postgres.create_database(f"store_{shape.value}")
        return made[shape]

    yield database_of
    for shape in made:
        stack.postgres.drop_database(f"store_{shape.value}")


def clear(connection: psycopg.Connection[Any]) -> None:
    """End all other sessions of the database and drop all tables, whatever the last test has left."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
    eventually(lambda: not connection.execute(f"SELECT {others}").fetchall(), 60, lambda: "a session does not end")
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture(params=[pytest.param(None, id="model"), *POSTGRES])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param is None:
        yield ModelPlace()
        return
    shape, settling = request.param
    dsn = request.getfixturevalue("databases")(shape)
    with psycopg.connect(dsn, autocommit=True) as connection:
        clear(connection)
        with connection.transaction():
            create_schema(connection, OUTBOX, shape)
        yield PostgresPlace(dsn, connection, shape, settling)


@pytest.fixture
def session(place: Place) -> Iterator[StoreSession]:
    """A session of the relay, with its tables created and its term written."""
    with closing(place.store.session("thresher/relay/1", locate=True)) as session:
        session.create_tables()
        session.control.insert(NEW_ROW)
        yield session


def wanted(*, rows: int = 100, **more: Any) -> Wanted:
    return Wanted(**{"buckets": range(BUCKETS), "rows": rows, "batch_bytes": 10**6, "largest_bytes": 10**6, **more})


def going(*rows: tuple[int, int], dead: Sequence[DeadFate] = ()) -> Fates:
    """Return fates that remove rows, by id and day, and set others aside."""
    return Fates(ids=[id_ for id_, _ in rows], create_times=[created(day) for _, day in rows], dead=dead)


def dying(id_: int, *, day: int = 1, kind: str = "rejected", blocking: bool = False) -> DeadFate:
    return DeadFate(id_, created(day), kind, "a reason", 2, blocking)


def marked(session: StoreSession, leader: uuid.UUID = MINE, **more: Any) -> list[int]:
    """Mark under the term, and return the ids, sorted."""
    return sorted(row[0] for row in session.marks(RELAY, TERM).mark(wanted(**more), leader))


# The session


def test_a_table_is_located_and_described(place: Place) -> None:
    with closing(place.store.session("a", locate=True)) as session:
        assert session.outbox == OUTBOX
        assert session.relation() is not None


def test_sessions_of_one_database_agree_on_its_identity(place: Place, session: StoreSession) -> None:
    with closing(place.store.session("b", locate=True)) as other:
        one, two = session.incarnation(), other.incarnation()
    assert (one.system_id, one.since) == (two.system_id, two.since)
    assert two.now > one.now


def test_sessions_of_older_terms_are_ended_and_settle_nothing(place: Place, session: StoreSession) -> None:
    place.write(1)
    with (
        closing(place.store.session("thresher/relay/0", locate=True)) as older,
        closing(place.store.session("thresher/other/0", locate=True)) as foreign,
    ):
        assert older.control.read(RELAY) == foreign.control.read(RELAY)
        session.end_sessions(starting="thresher/relay/", but="thresher/relay/1")
        with pytest.raises(DatabaseLost):
            older.settlement.settle(going((1, 1)))
        assert foreign.control.read(RELAY) is not None
    assert place.pending().keys() == {1}


def test_sessions_that_are_kept_are_not_refused(place: Place) -> None:
    place.store.require_sessions("thresher/relay/1")


def test_tables_are_created_once(place: Place, session: StoreSession) -> None:
    place.write(1)
    session.settlement.settle(going(dead=[dying(1)]))
    session.create_tables()
    assert session.control.exists()
    assert session.control.read(RELAY) is not None
    assert session.backlog().dead == 1


# The control row


def known(session: StoreSession, name: str = RELAY) -> ControlRow:
    row = session.control.read(name)
    assert row is not None
    return row


def test_a_control_row_is_inserted_once(session: StoreSession) -> None:
    before = known(session)
    assert (before.outbox_id, before.term, before.mode, before.shards) == (NEW_ROW.outbox_id, TERM, "m", 2)
    assert before.progress_topic_id is None
    assert session.control.insert(replace(NEW_ROW, term=OLD_TERM, shards=5)) == []
    assert known(session) == before


def test_an_outbox_is_relayed_under_one_name(session: StoreSession) -> None:
    assert list(session.control.insert(replace(NEW_ROW, name=OTHER_RELAY))) == [RELAY]
    assert session.control.read(OTHER_RELAY) is None
    assert list(session.control.insert(replace(NEW_ROW, name=OTHER_RELAY, outbox='"public"."other"'))) == []
    assert known(session, OTHER_RELAY).outbox == '"public"."other"'


def test_a_taken_control_row_has_a_new_term_and_time(session: StoreSession) -> None:
    before = known(session)
    taken = session.control.take(RELAY, OLD_TERM)
    assert taken == known(session)
    assert taken == replace(before, term=OLD_TERM, term_time=taken.term_time)
    assert taken.term_time > before.term_time
    assert session.control.take(OTHER_RELAY, OLD_TERM) is None
    assert session.control.read(OTHER_RELAY) is None


def test_a_layout_is_written_under_the_term_only(session: StoreSession) -> None:
    before = known(session)
    layout: dict[str, Any] = {"mode": "n", "shards": 7, "progress_topic_id": "id"}
    assert not session.control.lay_out(RELAY, term=OLD_TERM, **layout)
    assert not session.control.lay_out(OTHER_RELAY, term=TERM, **layout)
    assert known(session) == before
    assert session.control.lay_out(RELAY, term=TERM, **layout)
    assert known(session) == replace(before, **layout)


def test_a_new_term_forgets_the_settled_incarnation(session: StoreSession) -> None:
    layout: dict[str, Any] = {"mode": "n", "shards": 7, "progress_topic_id": "id", "settled_on": "here"}
    session.control.lay_out(RELAY, term=TERM, **layout)
    assert known(session).settled_on == "here"
    assert session.control.take(RELAY, OLD_TERM) is not None
    assert known(session).settled_on is None


def test_a_renamed_control_row_keeps_the_outboxs_identity(session: StoreSession) -> None:
    session.control.lay_out(RELAY, term=TERM, mode="m", shards=2, progress_topic_id="id")
    before = known(session)
    assert not session.control.rename(OTHER_RELAY, old=RELAY, outbox='"public"."other"')
    assert not session.control.rename(OTHER_RELAY, old="nobody", outbox=OUTBOX.quoted())
    assert not session.control.rename(RELAY, old=RELAY, outbox=OUTBOX.quoted())
    assert session.control.rename(OTHER_RELAY, old=RELAY, outbox=OUTBOX.quoted())
    assert session.control.read(RELAY) is None
    assert known(session, OTHER_RELAY) == replace(before, progress_topic_id=None)


def test_a_rename_to_the_name_of_another_outbox_is_refused(session: StoreSession) -> None:
    session.control.insert(replace(NEW_ROW, name=OTHER_RELAY, outbox='"public"."other"'))
    before = known(session), known(session, OTHER_RELAY)
    with pytest.raises(DatabaseRefused, match="belongs to the relay of another outbox"):
        session.control.rename(OTHER_RELAY, old=RELAY, outbox=OUTBOX.quoted())
    assert (known(session), known(session, OTHER_RELAY)) == before


def test_an_adopted_control_row_belongs_to_this_database(session: StoreSession) -> None:
    session.control.lay_out(RELAY, term=TERM, mode="m", shards=2, progress_topic_id="id")
    before = known(session)
    assert session.control.adopt(RELAY, system_id="new")
    assert known(session) == replace(before, system_id="new", progress_topic_id=None)
    assert not session.control.adopt(OTHER_RELAY, system_id="new")


@pytest.mark.parametrize("schema", ["public", "apart"])
def test_postgres_keeps_control_rows_without_an_outbox(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA apart")
        control = ControlTable(connection, schema)
        assert not control.exists()
        control.create()
        control.insert(NEW_ROW)
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'thresher_relay'").fetchall()
        assert found == [(schema,)]
        assert control.take(RELAY, OLD_TERM) == control.read(RELAY)


# Settling


def test_rows_are_settled_once(place: Place, session: StoreSession) -> None:
    for id_ in (1, 2, 3):
        place.write(id_)
    assert session.settlement.settle(going((1, 1), (3, 1))) == 2
    assert place.pending().keys() == {2}
    assert session.settlement.settle(going((1, 1), (3, 1))) == 0
    assert session.settlement.settle(going()) == 0
    assert place.pending().keys() == {2}


def test_another_row_under_a_settled_id_stays(place: Place, session: StoreSession) -> None:
    place.write(1, day=2)
    assert session.settlement.settle(going((1, 1))) == 0
    assert session.settlement.settle(going(dead=[dying(1, day=1)])) == 0
    assert place.pending() == {1: created(2)}
    session.settlement.require_gone([1], [created(1)])


def test_successive_rows_with_one_id_are_told_apart(place: Place, session: StoreSession) -> None:
    place.write(1, day=2)
    place.write(2, day=1)
    assert session.settlement.settle(going((2, 3), (1, 1), (1, 2), (1, 3), (1, 2))) == 1
    assert place.pending() == {2: created(1)}


def test_a_settlement_that_fails_midway_changes_nothing(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2)

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        session.settlement.settle(going((1, 1), dead=[dying(2)]), middle=fail)
    assert place.pending().keys() == {1, 2}
    assert session.settlement.settle(going((1, 1), dead=[dying(2)])) == 2


def test_a_check_for_gone_rows_refuses_pending_rows(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2)
    with pytest.raises(DatabaseRefused):
        session.settlement.require_gone([1, 2], [created(1)] * 2)
    session.settlement.settle(going((1, 1)))
    session.settlement.require_gone([1], [created(1)])
    with pytest.raises(DatabaseRefused):
        session.settlement.require_gone([1, 2], [created(1)] * 2)


def test_a_settlement_with_a_mark_removes_only_marked_rows(place: Place, session: StoreSession) -> None:
    for id_ in (1, 2, 3, 4):
        place.write(id_, topic="t" if id_ < 3 else "u")
    assert marked(session, MINE, held_topics=["u"]) == [1, 2]
    assert marked(session, OTHERS, held_topics=["t"]) == [3, 4]
    fates = going((1, 1), (3, 1), dead=[dying(2), dying(4)])
    # A dead row is removed under any mark.
    assert session.settlement.settle(fates, mark=MINE) == 3
    assert place.pending().keys() == {3}
    session.settlement.require_gone([1, 3], [created(1)] * 2, mark=MINE)
    with pytest.raises(DatabaseRefused):
        session.settlement.require_gone([1, 3], [created(1)] * 2, mark=OTHERS)


# Dead rows


def test_a_dead_row_is_moved_once(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2)
    assert session.settlement.settle(going(dead=[dying(1), dying(2, blocking=True)])) == 2
    assert place.pending() == {}
    assert session.settlement.settle(going(dead=[dying(1), dying(2, kind="again")])) == 0
    one, two = session.dead_rows.find()
    assert (one.id, micros(one.create_time), one.topic, one.kind, one.blocking) == (
        1,
        created(1),
        "t",
        "rejected",
        False,
    )
    assert (one.reason, one.attempts, one.value_bytes) == ("a reason", 2, 5)
    assert (two.id, two.kind, two.blocking) == (2, "rejected", True)
    backlog = session.backlog()
    assert (backlog.pending, backlog.dead, backlog.blocking) == (0, 2, 1)


def test_the_last_fate_of_a_dead_row_counts(place: Place, session: StoreSession) -> None:
    place.write(1)
    assert session.settlement.settle(going(dead=[dying(1, kind="first"), dying(1, kind="last")])) == 1
    assert [row.kind for row in session.dead_rows.find()] == ["last"]


def test_dead_rows_are_found_by_topic_kind_and_id(place: Place, session: StoreSession) -> None:
    for id_, topic in ((1, "t"), (2, "u"), (3, "u")):
        place.write(id_, topic=topic)
    session.settlement.settle(going(dead=[dying(3), dying(1), dying(2, kind="large")]))

    def found(**choice: Any) -> list[int]:
        return [row.id for row in session.dead_rows.find(**choice)]

    assert found() == [1, 2, 3]
    assert found(rows=2) == [1, 2]
    assert found(topic="u") == [2, 3]
    assert found(topic="u", kind="rejected") == [3]
    assert found(ids=[1, 3]) == [1, 3]
    assert session.dead_rows.drop(topic="u", kind="large") == 1
    assert session.dead_rows.drop(ids=[2]) == 0
    assert found() == [1, 3]


def test_a_dead_row_is_shown_whole(place: Place, session: StoreSession) -> None:
    place.write(1)
    session.settlement.settle(going(dead=[dying(1)]))
    (content,) = session.dead_rows.show(1)
    assert [content.row] == session.dead_rows.find()
    assert content.value in {b"value", "value"}
    # Deimos' tables have no headers.
    assert content.headers in {(("h", b"1"),), (("h", "1"),), ()}
    assert session.dead_rows.show(2) == []


def test_a_replayed_row_has_its_id_and_a_new_time(place: Place, session: StoreSession) -> None:
    place.write(1)
    fates = going((2, 1), dead=[dying(1)])
    session.settlement.settle(fates)
    assert session.dead_rows.replay(ids=[1]) == 1
    assert place.pending().keys() == {1}
    assert session.dead_rows.find() == []
    # An old progress record does not name the replayed row, because its create time differs.
    assert session.settlement.settle(fates) == 0
    assert place.pending()[1] > created(1)


def test_nothing_is_replayed_while_an_id_is_taken(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2)
    session.settlement.settle(going(dead=[dying(1), dying(2)]))
    place.write(2, day=2)
    with pytest.raises(InvalidInput):
        session.dead_rows.replay()
    assert [row.id for row in session.dead_rows.find()] == [1, 2]
    assert place.pending() == {2: created(2)}


def test_the_oldest_dead_row_of_an_id_is_replayed(place: Place, session: StoreSession) -> None:
    for day in (2, 1):
        place.write(1, day=day)
        session.settlement.settle(going(dead=[dying(1, day=day)]))
    assert len(session.dead_rows.show(1)) == 2
    assert session.dead_rows.replay() == 1
    assert [micros(row.create_time) for row in session.dead_rows.find()] == [created(2)]


# Marks


def test_marks_under_another_term_are_refused(place: Place, session: StoreSession) -> None:
    place.write(1)
    late = session.marks(RELAY, OLD_TERM)
    with pytest.raises(Superseded):
        late.mark(wanted(), OTHERS)
    with pytest.raises(Superseded):
        session.marks(OTHER_RELAY, TERM).mark(wanted(), OTHERS)
    assert session.settlement.settle(going((1, 1)), mark=OTHERS) == 0
    assert marked(session) == [1]
    assert late.reset([1], MINE) == 0
    session.control.take(RELAY, OLD_TERM)
    with pytest.raises(Superseded):
        marked(session, OTHERS)
    assert session.settlement.settle(going((1, 1)), mark=MINE) == 1


def test_a_marked_row_is_not_marked_again_by_its_leader(place: Place, session: StoreSession) -> None:
    place.write(1)
    assert marked(session) == [1]
    place.write(2)
    assert marked(session) == [2]
    assert marked(session) == []
    # A mark of an older attempt does not count.
    assert marked(session, OTHERS) == [1, 2]
    assert marked(session) == [1, 2]


def test_a_reset_takes_off_the_leaders_own_marks_only(place: Place, session: StoreSession) -> None:
    for id_ in (1, 2, 3):
        place.write(id_, topic="u" if id_ == 3 else "t")
    marked(session, held_topics=["u"])
    marked(session, OTHERS, held_topics=["t"])
    marks = session.marks(RELAY, TERM)
    assert marks.reset([2, 3], MINE) == 1
    assert marks.reset([2, 3], MINE) == 0
    assert marks.reset([], MINE) == 0
    assert session.settlement.settle(going((1, 1), (2, 1), (3, 1)), mark=MINE) == 1
    assert marked(session, held_topics=["u"]) == [2]


def test_rows_are_marked_by_key_in_order(place: Place, session: StoreSession) -> None:
    for id_ in (4, 1, 3, 2, 5):
        place.write(id_, b"k" if id_ < 4 else b"other")
    rows = session.marks(RELAY, TERM).mark(wanted(buckets=[bucket_of(b"k")], rows=2), MINE)
    assert [row[0] for row in rows] == [1, 2]
    assert [(row[2], row[3], row[4], row[9]) for row in rows] == [("t", b"k", b"value", None)] * 2
    assert [micros(row[1]) for row in rows] == [created(1)] * 2
    assert marked(session, buckets=[bucket_of(b"k")]) == [3]
    assert marked(session, buckets=[]) == []
    assert marked(session) == [4, 5]


def test_a_batch_holds_at_least_one_row_of_any_size(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2)
    assert marked(session, batch_bytes=1) == [1]
    assert marked(session, batch_bytes=1) == [2]


def test_held_topics_and_hot_keys_are_left_out(place: Place, session: StoreSession) -> None:
    place.write(1, topic="held")
    place.write(2, b"hot")
    place.write(3, b"hot", topic="u")
    place.write(4)
    place.write(5)
    left_out: dict[str, Any] = {"held_topics": ["held"], "hot_keys": [("t", b"hot")], "in_flight": {5: created(1)}}
    assert marked(session, **left_out) == [3, 4]
    assert marked(session) == [1, 2, 5]


def test_a_sweeper_leaves_out_young_rows(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2, b"other")
    assert marked(session, min_age_seconds=1e9) == []
    assert marked(session, min_age_seconds=1e9, by_id=True, rows_per_bucket=10) == []
    assert marked(session, min_age_seconds=0.0) == [1, 2]
    assert marked(session, min_age_seconds=0.0) == []


def test_rows_behind_a_blocking_dead_row_wait(place: Place, session: StoreSession) -> None:
    place.write(1)
    place.write(2, b"free")
    session.settlement.settle(going(dead=[dying(1, blocking=True), dying(2)]))
    place.write(3)
    place.write(4, b"free")
    place.write(5, topic="u")
    assert marked(session) == [4, 5]
    session.dead_rows.replay(ids=[1])
    assert marked(session) == [1, 3]


def test_a_dropped_row_blocks_nothing(place: Place, session: StoreSession) -> None:
    place.write(1)
    session.settlement.settle(going(dead=[dying(1, blocking=True)]))
    place.write(2)
    assert marked(session) == []
    assert session.dead_rows.drop(ids=[1]) == 1
    assert marked(session) == [2]


# Reading


# What waits


def test_the_longest_wait_of_any_shard_is_kept_and_grows(session: StoreSession) -> None:
    assert session.waits.read(RELAY) == Waits()
    first = Waits(topics={"t": 5.0, "u": 7.0}, rows={(1, 10): 3.0})
    assert session.waits.keep(RELAY, 0, first, term=TERM)
    assert session.waits.keep(RELAY, 1, Waits(topics={"t": 50.0}, rows={(2, 20): 4.0}), term=TERM)
    found = session.waits.read(RELAY)
    assert {topic: seconds // 1 for topic, seconds in found.topics.items()} == {"t": 50.0, "u": 7.0}
    assert {row: seconds // 1 for row, seconds in found.rows.items()} == {(1, 10): 3.0, (2, 20): 4.0}
    assert session.waits.read(RELAY).topics["t"] > found.topics["t"]
    assert session.waits.keep(RELAY, 0, Waits(), term=TERM)
    assert session.waits.read(RELAY).topics.keys() == {"t"}


def test_a_superseded_leader_keeps_no_waits(session: StoreSession) -> None:
    session.control.take(RELAY, OLD_TERM)
    assert not session.waits.keep(RELAY, 0, Waits(topics={"t": 5.0}), term=TERM)
    assert not session.waits.keep(OTHER_RELAY, 0, Waits(topics={"t": 5.0}), term=TERM)
    assert (session.waits.read(RELAY), session.waits.read(OTHER_RELAY)) == (Waits(), Waits())


@pytest.fixture
def reader(place: Place, session: StoreSession) -> Iterator[PendingReader]:
    opened = place.store.pending_reader("reader", since=session.incarnation().since)
    with closing(opened):
        yield opened


def few(reader: PendingReader, **more: Any) -> list[int]:
    return [row[0] for row in reader.few(wanted(**more))]


def test_held_topics_of_any_name_are_left_out(place: Place, session: StoreSession, reader: PendingReader) -> None:
    odd = ['a"b', "c\\d", "NULL", "e,f", "{}", " ", "'", "%s"]
    for id_, topic in enumerate([*odd, "good"], 1):
        place.write(id_, topic=topic)
    assert few(reader, held_topics=odd) == [9]
    assert sorted(few(reader, held_topics=odd, among=True)) == list(range(1, 9))
    assert [row[0] for row in session.marks(RELAY, TERM).mark(wanted(held_topics=odd), MINE)] == [9]


def test_reading_begins_on_the_known_incarnation_only(place: Place, session: StoreSession) -> None:
    session.incarnation()
    with pytest.raises(DatabaseLost, match="recovers first"):
        place.store.pending_reader("reader", since="another")


def test_rows_of_a_replacement_table_are_not_read(place: Place, session: StoreSession, reader: PendingReader) -> None:
    place.write(1)
    assert few(reader) == [1]
    place.replace_table()
    assert place.pending().keys() == {1}
    for read in (
        lambda: few(reader),
        lambda: reader.by_buckets(wanted(), bounded=False),
        lambda: reader.by_buckets(wanted(), bounded=True),
    ):
        with pytest.raises(DatabaseLost):
            read()
    recovered = session.incarnation()
    with closing(place.store.pending_reader("reader", since=recovered.since)) as anew:
        assert few(anew) == [1]


def test_rows_of_a_replacement_table_are_not_marked(place: Place, session: StoreSession) -> None:
    place.write(1)
    marks = session.marks(RELAY, TERM, table=session.incarnation().table)
    assert [row[0] for row in marks.mark(wanted(), MINE)] == [1]
    place.replace_table()
    with pytest.raises(DatabaseLost):
        marks.mark(wanted(), OTHERS)
    marks = session.marks(RELAY, TERM, table=session.incarnation().table)
    assert [row[0] for row in marks.mark(wanted(), MINE)] == [1]


def test_buckets_with_pending_rows_are_occupied(place: Place, session: StoreSession) -> None:
    probe = session.probe(range(BUCKETS))
    assert probe.occupied() == frozenset()
    place.write(1)
    assert bucket_of(b"k") in probe.occupied()
    session.settlement.settle(going((1, 1)))
    assert probe.occupied() == frozenset()


def test_reads_leave_out_rows_in_flight_by_id_and_time(place: Place, reader: PendingReader) -> None:
    place.write(1)
    place.write(2, day=2)
    assert few(reader) == [1, 2]
    assert few(reader, in_flight={1: created(1)}) == [2]
    # Another row has the id of a row in flight.
    assert few(reader, in_flight={1: created(5)}) == [1, 2]
    batch = reader.by_buckets(wanted(in_flight={2: created(2)}), bounded=False)
    assert batch.column("id").to_pylist() == [1]


def test_reads_leave_out_held_topics_and_blocked_keys(
    place: Place, session: StoreSession, reader: PendingReader
) -> None:
    place.write(1)
    session.settlement.settle(going(dead=[dying(1, blocking=True)]))
    place.write(2)
    place.write(3, b"free")
    place.write(4, b"free", topic="held")
    assert few(reader, held_topics=["held"]) == [3]
    assert few(reader, hot_keys=[("t", b"free"), ("u", b"k")]) == [4]
    for bounded in (True, False):
        batch = reader.by_buckets(wanted(hot_keys=[("held", b"free")]), bounded=bounded)
        assert batch.column("id").to_pylist() == [3]
    assert reader.by_buckets(wanted(held_topics=["held"]), bounded=True).column("id").to_pylist() == [3]


def test_a_read_is_bounded_by_rows_and_bytes(place: Place, reader: PendingReader) -> None:
    for id_ in (1, 2, 3):
        place.write(id_)
    assert few(reader, rows=2) == [1, 2]
    # A scan of the other table shapes has no limit per bucket.
    scan = isinstance(place, PostgresPlace) and place.shape is not Shape.THRESHER
    assert few(reader, rows_per_bucket=1) == ([1, 2, 3] if scan else [1])
    assert few(reader, batch_bytes=1) == [1]
    assert reader.by_buckets(wanted(batch_bytes=1), bounded=True).num_rows == 1
    assert reader.by_buckets(wanted(batch_bytes=1), bounded=False).num_rows == 3


def test_a_read_by_id_skips_no_earlier_row(place: Place, session: StoreSession, reader: PendingReader) -> None:
    # The first bucket has the older rows, and more of them than its limit.
    keys = [b"a"] * 4 + [b"b", b"a", b"b"]
    for id_, key in enumerate(keys, 1):
        place.write(id_, key)
    assert few(reader, by_id=True) == list(range(1, 8))
    for each in (1, 2, 3, 9):
        found = few(reader, by_id=True, rows_per_bucket=each)
        assert found == list(range(1, len(found) + 1)), each
        assert len(found) >= min(each, 7)
        batch = reader.by_buckets(wanted(by_id=True, rows_per_bucket=each), bounded=False)
        assert batch.column("id").to_pylist() == found
    assert few(reader, by_id=True, rows=3) == [1, 2, 3]
    assert few(reader, by_id=True, in_flight={1: created(1), 3: created(1)}, rows=3) == [2, 4, 5]
    session.control.insert(NEW_ROW)
    marks = session.marks(RELAY, TERM)
    order: list[int] = []
    while found := [row[0] for row in marks.mark(wanted(by_id=True, rows_per_bucket=2), MINE)]:
        order += found
    assert order == list(range(1, 8))


def older(window: pa.RecordBatch) -> list[bool]:
    """Tell which rows were written by a transaction older than the given one."""
    ages, oldest_ages = (window.column(name).to_pylist() for name in ("age", "oldest_age"))
    return [age > oldest for age, oldest in zip(ages, oldest_ages, strict=True)]


def test_a_window_has_its_ids_in_order(place: Place, reader: PendingReader) -> None:
    if isinstance(place, PostgresPlace) and place.shape is not Shape.THRESHER:
        # This shape has no index for windows, and a relay reads none there.
        return
    for id_ in (5, 2, 4, 3, 1):
        place.write(id_, b"other" if id_ == 3 else b"k")
    oldest = reader.oldest_transaction()
    assert oldest is not None
    window, whole = reader.window(wanted(), after=1, upto=4, oldest_transaction=oldest)
    assert (window.column("id").to_pylist(), whole) == ([2, 3, 4], True)
    assert older(window) == [True] * 3
    _, whole = reader.window(wanted(rows=3), after=0, upto=9, oldest_transaction=oldest)
    assert not whole
    if isinstance(place, PostgresPlace):
        # A row that was written after `oldest_transaction` is not older.
        place.write(6)
        window, _ = reader.window(wanted(), after=4, upto=9, oldest_transaction=oldest)
        assert older(window) == [True, False]
    place.write(7, b"k", day=9)
    in_flight = {2: created(1), 3: created(7)}
    window, _ = reader.window(wanted(in_flight=in_flight), after=1, upto=4, oldest_transaction=oldest)
    assert window.column("id").to_pylist() == [3, 4]
    assert reader.next_id(wanted(in_flight=in_flight), after=1) == 3
    assert reader.next_id(wanted(), after=7) is None


def test_no_oldest_transaction_is_named_while_a_key_is_blocked(
    place: Place, session: StoreSession, reader: PendingReader
) -> None:
    assert reader.oldest_transaction() is not None
    place.write(1)
    session.settlement.settle(going(dead=[dying(1, blocking=True)]))
    assert reader.oldest_transaction() is None


# The backlog


def test_pending_rows_are_counted_by_bucket(place: Place, session: StoreSession) -> None:
    empty = session.backlog()
    assert (empty.pending, empty.exact, dict(empty.by_bucket), empty.oldest_seconds) == (0, True, {}, None)
    for id_, key in ((1, b"k"), (2, b"k"), (3, b"other")):
        place.write(id_, key, day=id_)
    backlog = session.backlog()
    assert (backlog.pending, backlog.exact) == (3, True)
    assert dict(backlog.by_bucket) == {bucket_of(b"k"): 2, bucket_of(b"other"): 1}
    oldest = backlog.oldest_seconds
    assert oldest is not None
    session.settlement.settle(going((1, 1), (3, 3)))
    later = session.backlog()
    assert (later.pending, dict(later.by_bucket)) == (1, {bucket_of(b"k"): 1})
    assert later.oldest_seconds is not None
    # The oldest pending row is now a day younger.
    assert oldest - 86_400 <= later.oldest_seconds < oldest - 86_000


@pytest.mark.parametrize("missing", [pytest.param(None, id="model"), *POSTGRES[:1]])
def test_an_outbox_that_is_missing_is_refused(missing: Any, request: pytest.FixtureRequest) -> None:
    store: OutboxStore
    if missing is None:
        nowhere = database(OUTBOX)
        nowhere.there = False
        store = ModelStore(nowhere)
    else:
        store = PostgresStore(request.getfixturevalue("dsn"), OUTBOX, *missing)
    with pytest.raises(DatabaseRefused, match="there is no table"):
        store.session("a", locate=True)
