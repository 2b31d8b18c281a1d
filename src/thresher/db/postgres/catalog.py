"""Reads a relation from Postgres' catalog. The caller's session settings do not change the result."""

from typing import Any

from psycopg import Connection

from thresher.db.catalog import Column, Index, Relation, Sequence
from thresher.db.names import TableName
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.statements import statement
from thresher.db.strangers import PLAIN, Code, judge, judge_own


def read_relation(connection: Connection[Any], name: TableName) -> Relation | None:
    """Read what a check needs from the catalog; None if there is no relation of that name."""
    cursor = OwnCursor(connection)
    # By the caller's search_path. What follows must not find what others have planted there.
    (oid,) = cursor.execute("SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid", [name.quoted()]).fetchone() or (None,)
    if oid is None:
        return None
    with connection.transaction(force_rollback=True):
        cursor.execute(statement("catalog_session"))
        row = cursor.execute(statement("catalog_table"), [oid]).fetchone()
        if row is None:
            return None
        strangers = strangers_of(connection, oid)
        columns = {
            column: Column(
                type=type_, not_null=not_null, default=default, identity=bool(identity), generated=bool(generated)
            )
            for column, type_, not_null, identity, generated, default in cursor.execute(
                statement("catalog_columns"), [oid]
            )
        }
        indexes = tuple(
            Index(columns=tuple(names), unique=unique, predicate=predicate, immediate=immediate)
            for names, unique, predicate, immediate in cursor.execute(statement("catalog_indexes"), [oid])
        )
        cursor.execute(statement("catalog_sequences"), [oid, oid])
        sequences = tuple(
            Sequence(name=sequence, cache=cache, increment=increment, cycle=cycle, maximum=maximum, logged=kept == "p")
            for sequence, cache, increment, cycle, maximum, kept in cursor
        )
    oid, kind, persistence, row_security, options, has_children, rules, triggers, referring, constraints, encoding = row
    return Relation(
        kind=kind,
        persistence=persistence,
        row_security=row_security,
        columns=columns,
        indexes=indexes,
        sequences=sequences,
        options=tuple(options or ()),
        has_children=has_children,
        rules=tuple(rules),
        triggers=tuple(triggers),
        referring=tuple(referring),
        constraints=tuple(constraints),
        encoding=encoding,
        strangers=strangers,
    )


def strangers_of(connection: Connection[Any], table: int) -> tuple[str, ...]:
    """Return who could run code of their own with our rights by this table: see `judge`. Raises the driver's errors."""
    return tuple(judge(_codes(connection, table)))


def own_table_problems(connection: Connection[Any], quoted: str, kinds: str = PLAIN) -> tuple[str, ...]:
    """Return what is wrong with a table of ours; nothing if there is none. Raises the driver's errors.

    In a session of ours: its search_path has nothing that others have planted.
    """
    row = OwnCursor(connection).execute("SELECT pg_catalog.to_regclass(%s)::oid", [quoted]).fetchone()
    return () if row is None or row[0] is None else tuple(judge_own(_codes(connection, row[0]), kinds))


def _codes(connection: Connection[Any], table: int) -> list[Code]:
    found = OwnCursor(connection).execute(statement("catalog_strangers"), {"table": table}).fetchall()
    return [Code(*each) for each in found]
