"""An outbox with stamped rows, its archive, and the contents of both."""

from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from thresher.archive.archiver import Archiver
from thresher.archive.run import ArchiveJob
from thresher.archive.target import TO_TABLE, Target, ToDirectory
from thresher.db import TableName
from thresher.db.postgres.own_tables.lock_rows import LockRows
from thresher.outbox import create_schema

HOUR = 3600.0
# The numbers of rows: stamped two hours ago, stamped just now, and pending.
DUE, YOUNG, WAITING = 25, 3, 2


class OutboxPlace:
    """A database with an outbox, for one test."""

    def __init__(self, dsn: str, directory: Path, table: str = "outbox") -> None:
        self.dsn, self.directory, self.table = dsn, directory, TableName(table=table)
        with psycopg.connect(dsn) as connection:
            create_schema(connection, self.table)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def fill(self, due: int = DUE, young: int = YOUNG, waiting: int = WAITING, value_bytes: int = 20) -> None:
        """Write rows of each kind, mixed."""
        self.sql(
            f"INSERT INTO {self.table} (kafka_topic, kafka_key, kafka_value, dispatched_time) "
            f"SELECT 't', 'k'::bytea, decode(repeat(md5(n::text), {value_bytes // 16 + 1}), 'hex'), "
            f"CASE WHEN n <= {due} THEN now() - interval '2 hours' WHEN n <= {due + young} THEN now() END "
            f"FROM generate_series(1, {due + young + waiting}) n ORDER BY md5(n::text)"
        )

    def job(self, target: str | Target, *, rows: int = 10, seconds: float = HOUR) -> ArchiveJob:
        if isinstance(target, str):
            target = TO_TABLE if target == "table" else ToDirectory(self.directory)
        return ArchiveJob(dsn=self.dsn, outbox=self.table, target=target, older_than_seconds=seconds, batch_rows=rows)

    def archiver(self, target: str | Target, *, rows: int = 10, seconds: float = HOUR, **options: Any) -> Archiver:
        return Archiver(self.job(target, rows=rows, seconds=seconds), **options)

    @property
    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.parquet"))

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql(f"SELECT id FROM {self.table} ORDER BY id")]

    def archived_ids(self, target: str) -> list[int]:
        if target == "table":
            return [row[0] for row in self.sql(f"SELECT id FROM {self.table.companion('_archive')} ORDER BY id")]
        return self.archived_in(self.directory)

    @staticmethod
    def archived_in(directory: Path) -> list[int]:
        files = directory.glob("*.parquet")
        return sorted(id_ for path in files for id_ in pq.read_table(path).column("id").to_pylist())

    def everything(self, target: str) -> Counter[int]:
        """Return how often each id is in the outbox or in the archive."""
        return Counter(self.ids()) + Counter(self.archived_ids(target))

    def unfinished(self) -> int:
        rows = self.sql("SELECT count(*) FROM thresher_archive_batches WHERE finish_time IS NULL")
        return int(rows[0][0])


def archiving(connection: psycopg.Connection[Any]) -> AbstractContextManager[bool]:
    """Hold the lock of an archiver of the outbox, in this session in autocommit."""
    locks = LockRows(connection, "public")
    locks.create()
    return locks.held('archive "public"."outbox"')
