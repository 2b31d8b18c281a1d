"""Reads a relation from Postgres' catalog. The caller's session settings do not change the result."""

from typing import Any

from psycopg import Connection

from thresher.db.catalog import Column, Index, Relation, Sequence
from thresher.db.names import TableName
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.statements import statement


def read_relation(connection: Connection[Any], name: TableName) -> Relation | None:
    """Read what a check needs from the catalog; None if there is no relation of that name."""
    cursor = OwnCursor(connection)
    row = cursor.execute(statement("catalog_table"), [name.quoted()]).fetchone()
    if row is None:
        return None
    oid, kind, persistence, row_security, options, has_children, rules, triggers, referring, constraints, encoding = row
    with connection.transaction(force_rollback=True):
        cursor.execute(statement("catalog_session"))
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
    )
