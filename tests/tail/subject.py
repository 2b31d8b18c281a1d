"""The tail as the subject of runs with faults: an outbox table whose rows are deleted after publishing."""

from pathlib import Path
from typing import Any

import psycopg

from tests.faults.program import Program
from tests.relay.subject import NAME, TABLE, RelaySubject
from thresher.db.names import TableName
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect
from thresher.devstack.stack import Stack
from thresher.outbox import Message, Outbox
from thresher.tail.log_source import TableSource
from thresher.tail.slot import create_slot

SLOT = f"thresher_{TABLE.table}"


class TailSubject(RelaySubject):
    """A tail under a load of a few writers; a test may add rows that can never be sent."""

    shards = 1
    left = "tests.tail.program:nothing_left"
    batch_rows = 50

    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        super().prepare(stack, bootstrap, directory)
        connection = connect(self.dsn, "test")
        table = TableName(table=TABLE.table, schema="public")
        create_slot(PostgresSlots(connection), SLOT, SLOT, TableSource(table=table))
        connection.close()

    def program(self, **settings: Any) -> Program:
        given = {"name": NAME, "dsn": self.dsn, "bootstrap": self._bootstrap, "batch_rows": self.batch_rows}
        return Program(module="tests.tail.program", settings={**given, "policy": self.policy, **settings})

    def write_bad(self, value: str) -> None:
        """Commit a row for a topic that does not exist."""
        with psycopg.connect(self.dsn) as connection:
            Outbox(TABLE.table).stash(connection, Message(topic=f"{NAME}.missing", key="k", value=value))

    def bad(self) -> list[bytes]:
        """Return the values of rows that were set aside."""
        with psycopg.connect(self.dsn) as connection:
            query = "SELECT kafka_value FROM outbox_dead WHERE kafka_topic = %s ORDER BY id"
            return [value for (value,) in connection.execute(query, [f"{NAME}.missing"]).fetchall()]
