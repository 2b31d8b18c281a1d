"""The tail as the subject of a random soak: of a table whose rows are deleted after publishing, or of the WAL alone.

Rows stay in the table until the slot is confirmed beyond them, even if they are published. So progress is measured by
the offsets that readers of committed records can read. The load is drained when the slot is confirmed beyond its end.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.faults import drift
from tests.faults.fault_schedule import Kinds, spark_kinds
from tests.faults.guarded import LOGIN
from tests.faults.mix.crew import Stage
from tests.faults.mix.movement import Look
from tests.faults.mix.programs import Programs
from tests.faults.program import Program
from tests.relay.load import Load
from tests.relay.mixed_rows import Rows
from tests.relay.mixed_subject import TRANSFORM, MixedRelay, relay_kinds
from tests.relay.subject import NAME, TABLE
from tests.tail.logged import close_server_functions
from thresher.db.log_emitter import emit_function
from thresher.db.lsn import lsn_number
from thresher.db.names import TableName
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect_as_configured
from thresher.devstack.stack import Stack
from thresher.outbox.log_message import encode
from thresher.tail.log_source import LogSource, TableSource
from thresher.tail.settings import Via
from thresher.tail.slot import create_slot

SLOT = f"thresher_{TABLE.table}"
LAYOUT: Mapping[str, Any] = {"transforms": True}
# Longer than the faults in which a topic is missing or denied.
_GRACE_SECONDS = 60.0
_PATIENCE_SECONDS = 5.0
_TABLE_KINDS = ("table-locked", "ids-restart")
_SLOT = """
    SELECT s.confirmed_flush_lsn::text, pg_current_wal_insert_lsn()::text
      FROM pg_replication_slots s WHERE s.slot_name = %s"""


def tail_kinds(nodes: int = 1, via: Via = Via.TABLE) -> Kinds:
    """Return every kind of fault that a tail meets on this many nodes; without a table, no table faults."""
    kinds = {**relay_kinds(nodes), **spark_kinds(_layout)}
    return {kind: dealt for kind, dealt in kinds.items() if via is Via.TABLE or kind not in _TABLE_KINDS}


def _layout(draw: random.Random) -> dict[str, Any]:
    return {"transforms": draw.choice([True, False])}


class LoggedRows(Rows):
    """Additional messages that are only in the WAL, not in a table."""

    def write(self, connection: psycopg.Connection[Any], rows: Iterable[Sequence[Any]]) -> None:
        for topic, key, value, partition, timestamp, names, values in rows:
            content = encode((topic, key, value, tuple(names), tuple(values), partition, timestamp))
            connection.execute(f"SELECT {emit_function(TABLE)}(%b)".encode(), [content])


class MixedTail(MixedRelay):
    """A tail that logs in to its broker, with additional rows beside the load."""

    shards = 1
    batch_rows = 50
    producers = f"{NAME}.tail-"

    def __init__(self, *, via: Via = Via.TABLE, **subject: Any) -> None:
        super().__init__(**subject)
        self.via = via
        self.rows_type = Rows if via is Via.TABLE else LoggedRows
        self._seen = (0, 0)
        self._end: int | None = None

    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        super().prepare(stack, bootstrap, directory)
        named = TableName(table=TABLE.table, schema="public")
        source = TableSource(table=named) if self.via is Via.TABLE else LogSource(outbox=TABLE)
        with closing(connect_as_configured(self.dsn, "test")) as connection:
            create_slot(PostgresSlots(connection), SLOT, SLOT, source)
            if isinstance(source, LogSource):
                close_server_functions(connection, TABLE)
        self._client = AdminClient({"bootstrap.servers": stack.kafka.bootstrap, "log_level": 0})

    def program(self, *, transforms: bool = True, **settings: Any) -> Program:
        given = {
            "name": NAME, "dsn": self.dsn, "bootstrap": self._bootstrap, "batch_rows": self.batch_rows,
            "policy": self.policy, "via": self.via, "grace_seconds": _GRACE_SECONDS, "kafka": LOGIN,
            "hook": drift.HOOK, "transforms": [TRANSFORM] if transforms else [], **settings,
        }  # fmt: skip
        return Program(module="tests.tail.program", settings=given)

    def crew(self, stage: Stage) -> Programs:
        return Programs(stage, LAYOUT)

    def _begin(self, **plan: Any) -> Load:
        if self.via is Via.LOG:
            plan |= {"via": "log", "slot": SLOT}
        self._end = None
        return super()._begin(**plan)

    def look(self) -> Look | None:
        """Return how many bytes of WAL wait, and whether any records were published or positions confirmed since."""
        try:
            confirmed, end = self._slot()
            seen = (confirmed, self._published())
        except (psycopg.Error, KafkaException):
            return None
        moved, self._seen = seen != self._seen, seen
        return Look(max(0, end - confirmed), moved)

    def drained(self) -> bool:
        try:
            confirmed, end = self._slot()
            if self._end is None:
                self._end = end
            return confirmed >= self._end and self.pending() == 0
        except psycopg.Error:
            return False

    def circumstances(self) -> str:
        try:
            with psycopg.connect(self.dsn, autocommit=True, connect_timeout=2) as connection:
                slots = connection.execute("SELECT * FROM pg_replication_slots").fetchall()
                end = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        except psycopg.Error as error:
            return f"the database does not answer: {error}"
        return f"{slots} {end}\n{super().circumstances()}"

    def _slot(self) -> tuple[int, int]:
        """Return how far the slot is confirmed, and the end of the WAL."""
        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=2) as connection:
            row = connection.execute(_SLOT, [SLOT]).fetchone()
        assert row is not None, "the slot is gone"
        return lsn_number(row[0]), lsn_number(row[1])

    def _published(self) -> int:
        """Return how many offsets of the topics can be read."""
        known = self._client.list_topics(timeout=_PATIENCE_SECONDS).topics
        places = {
            TopicPartition(name, part): OffsetSpec.latest()
            for name in self.topics
            if name in known
            for part in known[name].partitions
        }
        level = IsolationLevel.READ_COMMITTED
        found = self._client.list_offsets(places, isolation_level=level, request_timeout=_PATIENCE_SECONDS)
        return sum(answer.result().offset for answer in found.values())
