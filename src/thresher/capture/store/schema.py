"""The DDL of a capture, and its checks: its own tables, and the guard columns of the tables that it writes to."""

from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import Connection

from thresher.capture.problem import CaptureRefused
from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.store.entity_table import RIGHTS, guard_ddl, lacking_rights, table_problems
from thresher.capture.store.explained import explained
from thresher.capture.store.tables import CaptureTables
from thresher.db import statement
from thresher.db.names import quoted_name
from thresher.db.postgres.catalog import own_table_problems, read_relation
from thresher.db.postgres.cursor import OwnCursor

CREATE = "thresher capture schema create -c FILE"


def capture_ddl(tables: CaptureTables, mappings: Sequence[TopicMapping]) -> str:
    """Return the statements that prepare a database for a capture. Repeating them changes nothing."""
    return "\n".join([tables.ddl(), *(guard_ddl(each) for each in mappings if each.table is not None)])


def create_schema(connection: Connection[Any], tables: CaptureTables, mappings: Sequence[TopicMapping]) -> None:
    """Create capture's tables and add missing guard columns, in the caller's transaction. Create no entity table."""
    with explained():
        OwnCursor(connection).execute(tables.ddl().encode())
        for mapping in mappings:
            if mapping.table is not None and read_relation(connection, mapping.table) is not None:
                OwnCursor(connection).execute(guard_ddl(mapping))


def schema_problems(
    connection: Connection[Any], tables: CaptureTables, mappings: Sequence[TopicMapping]
) -> tuple[str, ...]:
    """Return the problems that keep a capture from working with this database, with the statements that fix them."""
    with explained():
        return (
            *_own_problems(connection, tables),
            *_shared_tables(connection, mappings),
            *(
                f"{mapping.table}: {problem}"
                for mapping in mappings
                if mapping.table is not None
                for problem in table_problems(connection, mapping)
            ),
        )


def require_schema(connection: Connection[Any], tables: CaptureTables, mappings: Sequence[TopicMapping]) -> None:
    """Raise `CaptureRefused` if anything is missing."""
    if problems := schema_problems(connection, tables, mappings):
        raise CaptureRefused("the database is not ready for this capture:\n" + "\n".join(problems))


def require_no_guards(connection: Connection[Any], capture: str, mappings: Sequence[TopicMapping]) -> None:
    """Raise `CaptureRefused` if the table of a topic that was never captured has rows with guards of another topic.

    The guard of another topic would silently refuse records with lower offsets.
    """
    for mapping in mappings:
        if mapping.table is None:
            continue
        asked = statement("capture_guard_any", mapping.table, offset=quoted_name(mapping.guard.offset))
        if OwnCursor(connection).execute(asked).fetchone() is not None:
            raise CaptureRefused(
                f"{mapping.topic} was never captured as {capture}, and {mapping.table} has rows that another topic or "
                "another capture wrote: their guards would refuse its records. Run 'thresher capture adopt' to clear "
                "these guards and begin at the topic's first record; rows show older states until it has caught up"
            )


def _shared_tables(connection: Connection[Any], mappings: Sequence[TopicMapping]) -> Iterator[str]:
    topics: dict[int, list[str]] = {}
    for mapping in mappings:
        if mapping.table is not None:
            asked = OwnCursor(connection).execute("SELECT pg_catalog.to_regclass(%s)::oid", [mapping.table.quoted()])
            if (row := asked.fetchone()) is not None and row[0] is not None:
                topics.setdefault(row[0], []).append(mapping.topic)
    for some in topics.values():
        if len(some) > 1:
            yield (
                f"{', '.join(some)}: these topics share a table, and a row's guard holds the offset of one topic: give "
                "each topic its own table"
            )


def _own_problems(connection: Connection[Any], tables: CaptureTables) -> Iterator[str]:
    missing = [str(table) for table in tables.all if read_relation(connection, table) is None]
    if missing:
        yield f"{', '.join(missing)}: no such table; '{CREATE}' creates it, '… schema print' prints the statements"
    for table in tables.all:
        yield from (f"{table}: {problem}" for problem in own_table_problems(connection, table.quoted()))
        if str(table) not in missing and (grant := lacking_rights(connection, table, RIGHTS)) is not None:
            yield f"{table}: rights are missing: {grant}"
        asked = OwnCursor(connection).execute(statement("capture_policies"), [table.quoted()])
        if asked.fetchone() == (True,):
            yield f"{table}: its policies hide every row from this role: '… schema print --role ROLE' prints the policy"
