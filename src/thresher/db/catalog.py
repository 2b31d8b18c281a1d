"""What the database's catalog says of a relation, read in one go and in words that no session setting changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from thresher.db.cursor import OwnCursor
from thresher.db.names import TableName
from thresher.db.statements import statement

LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as the catalog has it. `default` is a generated column's formula where `generated` is set."""

    type: str
    not_null: bool = False
    default: str | None = None
    identity: bool = False
    generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A usable index: its columns in order (None for an expression) and a partial index's predicate."""

    columns: tuple[str | None, ...]
    unique: bool = False
    predicate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A sequence that ids are drawn from."""

    name: str
    cache: int = 1
    increment: int = 1
    cycle: bool = False
    maximum: int = LARGEST_ID
    logged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """All that a check looks at, read in one go."""

    kind: str = "r"
    persistence: str = "p"
    row_security: bool = False
    columns: Mapping[str, Column] = field(default_factory=dict)
    indexes: tuple[Index, ...] = ()
    sequences: tuple[Sequence, ...] = ()
    options: tuple[str, ...] = ()
    has_children: bool = False
    rules: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    referring: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    # The database's.
    encoding: str = "UTF8"


def read_relation(connection: Connection[Any], name: TableName) -> Relation | None:
    """Read what a check needs from the catalog; None where there is nothing of that name."""
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
            Index(columns=tuple(names), unique=unique, predicate=predicate)
            for names, unique, predicate in cursor.execute(statement("catalog_indexes"), [oid])
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
