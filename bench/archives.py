"""How fast stamped rows move to the archive, as a table and as Parquet files, on a durable Postgres.

Medians of rounds in which both take turns, each with the same rows, written again. Then the same for the table beside a
million rows that were stamped just now. Then the time of a run that finds no row to move. The last line is one JSON
object.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg

from bench.measuring.place import durable_stack
from bench.measuring.report import measured, report
from bench.measuring.rounds import Figures, in_turns, medians, middle
from thresher.archive.archiver import Archiver
from thresher.archive.run import ArchiveJob
from thresher.archive.target import TO_TABLE, Target, ToDirectory
from thresher.db import TableName
from thresher.outbox import create_schema

NAME = TableName(table="outbox")
ROWS, YOUNG_ROWS, VALUE_BYTES = 200_000, 1_000_000, 200
_FILL = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, dispatched_time)
SELECT 'orders', convert_to('key-' || n % 1000, 'UTF8'),
       substring(decode(repeat(md5(n::text), {hashes}), 'hex') FOR {value_bytes}),
       '{{a}}', '{{b}}', now() - CASE WHEN n <= {rows} THEN interval '1 day' ELSE interval '1 minute' END
  FROM generate_series(1, {rows} + {young}) n
"""


def rows_per_s(dsn: str, target: Target, *, rows: int = ROWS, young: int = 0, value_bytes: int = VALUE_BYTES) -> float:
    """Fill an outbox with stamped rows, and return the rows a second that move to the archive; young rows stay."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS outbox, outbox_archive, thresher_archive_batches")
        create_schema(connection, NAME)
        fill = _FILL.format(rows=rows, young=young, value_bytes=value_bytes, hashes=value_bytes // 16 + 1)
        connection.execute(fill.encode())
        connection.execute("VACUUM ANALYZE outbox")
        connection.execute("CHECKPOINT")
    return rows / run_seconds(dsn, target, rows=rows)


def run_seconds(dsn: str, target: Target, *, rows: int) -> float:
    """Return the time of a run that moves exactly this many rows."""
    began = time.perf_counter()
    done = Archiver(ArchiveJob(dsn=dsn, outbox=NAME, target=target, older_than_seconds=3600)).run()
    seconds = time.perf_counter() - began
    assert done.rows == rows
    return seconds


def beside_young_rows(dsn: str, *, rows: int = ROWS, young: int = YOUNG_ROWS) -> Figures:
    """Return the rows a second that move to the table beside young rows, and the time of a run after that."""
    found = {"archive_table_beside_young_rows_per_s": rows_per_s(dsn, TO_TABLE, rows=rows, young=young)}
    found["archive_idle_run_s"] = run_seconds(dsn, TO_TABLE, rows=0)
    for name, each in found.items():
        measured(name, each)
    return found


def archive_rows_per_s(dsn: str, directory: Path, *, rounds: int = 3, rows: int = ROWS) -> Figures:
    """Return the medians for the table, and for files in this directory."""
    sides: dict[str, Callable[[], float]] = {
        "archive_table_rows_per_s": partial(rows_per_s, dsn, TO_TABLE, rows=rows),
        "archive_rows_per_s": partial(rows_per_s, dsn, ToDirectory(directory), rows=rows),
    }
    return medians(in_turns(sides, rounds, tell=measured))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--young", type=int, default=YOUNG_ROWS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, durable_stack() as stack:
        dsn = stack.postgres.create_database("bench")
        stack.kafka.nodes[1].end()  # not measured here, and it would use CPU time
        figures = archive_rows_per_s(dsn, Path(directory) / "archive", rounds=options.rounds, rows=options.rows)
        figures |= middle(
            [beside_young_rows(dsn, rows=options.rows, young=options.young) for _ in range(options.rounds)]
        )
    report(
        "stamped rows to the archive",
        figures,
        wanted={},
        settings={
            "rows": options.rows,
            "young_rows": options.young,
            "value_bytes": VALUE_BYTES,
            "rounds": options.rounds,
        },
        note=f"{options.rows:,} stamped rows of {VALUE_BYTES} byte values in batches of 10,000, and {options.young:,} "
        f"young ones beside them; durable Postgres 18; medians of {options.rounds} rounds",
    )


if __name__ == "__main__":
    main()
