"""What waits in the shards of pipelines, in Postgres: rows of `thresher_wait`, over a connection in autocommit."""

from typing import Any

import psycopg

from thresher.db.names import TableName
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.own_tables.lock_rows import create_missing
from thresher.db.postgres.rights.ddl import shared_ddl
from thresher.db.postgres.sessions import explained
from thresher.db.statements import statement
from thresher.db.waits import Waits

# A row that was written longer ago does not count: its topics may have come and gone. So the row of a shard that is no
# more, because there are fewer now, ends no grace of a later wait.
_COUNTS_SECONDS = 60.0


def wait_table(schema: str | None) -> TableName:
    """Return the table of waits in a schema; without one, the session's search_path decides."""
    return TableName(table="thresher_wait", schema=schema)


def wait_ddl(waits: TableName) -> str:
    """Return the DDL of the table of waits."""
    return shared_ddl(statement("wait_create", waits), waits)


class WaitRows:
    """The kept waits of one schema. `control` is the table of control rows."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str | None, control: TableName) -> None:
        self._connection, self._table, self._control = connection, wait_table(schema), control

    def create(self) -> None:
        """Create the table if it is missing."""
        with explained():
            create_missing(self._connection, self._table.quoted(), wait_ddl(self._table))

    def read(self, name: str) -> Waits:
        """Return what waits in any shard of a pipeline, until now."""
        asked = {"name": name, "seconds": _COUNTS_SECONDS}
        with explained():
            found = OwnCursor(self._connection).execute(statement("wait_read", self._table), asked).fetchall()
        topics: dict[str, float] = {}
        rows: dict[tuple[int, int], float] = {}
        for names, topic_seconds, ids, create_times, row_seconds, since in found:
            for topic, seconds in zip(names, topic_seconds, strict=True):
                topics[topic] = max(topics.get(topic, 0.0), seconds + since)
            for row, seconds in zip(zip(ids, create_times, strict=True), row_seconds, strict=True):
                rows[row] = seconds + since
        return Waits(topics=topics, rows=rows)

    def keep(self, name: str, shard: int, waits: Waits, *, term: str) -> bool:
        """Replace what is kept for a shard, under the pipeline's term."""
        values = {
            "name": name,
            "shard": shard,
            "term": term,
            "topics": list(waits.topics),
            "topic_seconds": list(waits.topics.values()),
            "ids": [id_ for id_, _ in waits.rows],
            "create_times": [create_time for _, create_time in waits.rows],
            "row_seconds": list(waits.rows.values()),
        }
        change = statement("wait_keep", self._table, control=self._control.quoted().replace("%", "%%"))
        with explained():
            return OwnCursor(self._connection).execute(change, values).rowcount > 0
