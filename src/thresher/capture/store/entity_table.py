"""The table of an entity: the checks of its definition, and the statements that write its rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import Connection

from thresher.capture.problem import CaptureRefused
from thresher.capture.rows.guard import Change
from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.store.explained import explained
from thresher.capture.store.tables import parameter_safe
from thresher.db import TableName, statement
from thresher.db.names import quoted_name
from thresher.db.postgres.arrays import bigint_array, encoded_text_array
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.cursor import BigintArray, OwnCursor, TextArray

_GUARD_TYPES = {"partition": "integer", "offset": "bigint", "timestamp": "bigint"}
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityTable:
    """A table that capture writes to."""

    # The statements, with the guard's condition.
    upsert: LiteralString
    delete: LiteralString
    # The array columns, and the JSON columns.
    arrays: frozenset[str]
    json: frozenset[str]

    def write(self, connection: Connection[Any], changes: Sequence[Change]) -> None:
        """Write rows whose keys are all different, in the caller's transaction.

        Rows are written in the order of their keys, so that two shards with the same rows do not deadlock.
        """
        rows = sorted(changes, key=lambda change: change.key)
        columns = [change.values for change in rows if change.values is not None]
        OwnCursor(connection).execute(self.upsert, [*_arrays(columns), *_guards(rows)])

    def remove(self, connection: Connection[Any], changes: Sequence[Change]) -> None:
        """Delete rows, in the caller's transaction, in the order of their keys."""
        rows = sorted(changes, key=lambda change: change.key)
        OwnCursor(connection).execute(self.delete, [*_arrays([each.key for each in rows]), *_guards(rows)])


def entity_table(connection: Connection[Any], mapping: TopicMapping, *, again: bool = False) -> EntityTable:
    """Read the table of a mapping. Raises `CaptureRefused` with every problem and the statement that fixes it.

    With `again`, the statements also overwrite rows that were written from the same record.
    """
    if problems := table_problems(connection, mapping):
        raise CaptureRefused(f"{mapping.topic} cannot be captured to {mapping.table}:\n" + "\n".join(problems))
    columns = _columns(connection, _table(mapping))
    types = {name: (type_, array) for name, type_, array, *_ in columns}
    equals = {name: f"OPERATOR({equal})" for name, *_, equal in columns}
    numbered = {name: f"c{number}" for number, name in enumerate(mapping.columns)}
    keys = {name: f"c{number}" for number, name in enumerate(mapping.key)}
    guard = {name: _quoted(column) for name, column in mapping.guard._asdict().items()}
    others = [name for name in mapping.columns if name not in mapping.key]
    before = "<=" if again else "<"
    return EntityTable(
        upsert=statement(
            "capture_upsert",
            _table(mapping),
            columns=_list(map(_quoted, mapping.columns)),
            casts=_list(f"n.{number}::{types[name][0]}" for name, number in numbered.items()),
            arrays=_list("%s::text[]" for _ in numbered),
            names=_list(numbered.values()),
            key=_list(map(_quoted, mapping.key)),
            assignments="".join(f"{_quoted(name)} = EXCLUDED.{_quoted(name)}, " for name in others),
            before=before,
            **guard,
        ),
        delete=statement(
            "capture_delete",
            _table(mapping),
            arrays=_list("%s::text[]" for _ in keys),
            names=_list(keys.values()),
            match=" AND ".join(
                f"t.{_quoted(name)} {equals[name]} n.{number}::{types[name][0]}" for name, number in keys.items()
            ),
            before=before,
            **guard,
        ),
        arrays=frozenset(name for name in mapping.columns if types[name][1]),
        json=frozenset(name for name in mapping.columns if types[name][0] in {"json", "jsonb"}),
    )


def table_problems(connection: Connection[Any], mapping: TopicMapping) -> tuple[str, ...]:
    """Return the problems that keep capture from writing to a table, each with the statement that fixes it."""
    with explained():
        return tuple(_problems(connection, mapping))


def guard_ddl(mapping: TopicMapping) -> LiteralString:
    """Return the statement that adds the guard columns if they are missing."""
    guard = {name: quoted_name(column) for name, column in mapping.guard._asdict().items()}
    return statement("capture_guard_add", _table(mapping), **guard)


def lacking_rights(connection: Connection[Any], table: TableName, rights: Sequence[str] = RIGHTS) -> str | None:
    """Return the statement that grants the missing rights; None if none is missing."""
    rows = OwnCursor(connection).execute(statement("capture_rights"), [list(rights), table.quoted()]).fetchall()
    if not rows:
        return None
    return f"GRANT {', '.join(right for right, _ in rows)} ON {table} TO {quoted_name(rows[0][1])};"


def _problems(connection: Connection[Any], mapping: TopicMapping) -> Iterator[str]:
    table = _table(mapping)
    relation = read_relation(connection, table)
    if relation is None:
        yield f"there is no such table; create it, with types of your choice: {_create(mapping)}"
        return
    if relation.kind not in {"r", "p"}:
        yield "it is not a table"
        return
    yield from relation.strangers
    yield from _column_problems(connection, mapping)
    if not any(
        index.unique and index.immediate and index.predicate is None and set(index.columns) == set(mapping.key)
        for index in relation.indexes
    ):
        columns = ", ".join(map(quoted_name, mapping.key))
        yield f"there is no unique index on {', '.join(mapping.key)}: CREATE UNIQUE INDEX ON {table} ({columns});"
    if (grant := lacking_rights(connection, table)) is not None:
        yield f"rights are missing: {grant}"


def _column_problems(connection: Connection[Any], mapping: TopicMapping) -> Iterator[str]:
    table = _table(mapping)
    found = {name: (type_, generated, always) for name, type_, _, generated, always, _ in _columns(connection, table)}
    for name in mapping.columns:
        if name not in found:
            yield f"it has no column {name}: ALTER TABLE {table} ADD COLUMN {quoted_name(name)} text;"
        elif found[name][1]:
            yield f"column {name} is generated: remove it from the mapping"
        elif found[name][2]:
            by_default = f"ALTER TABLE {table} ALTER COLUMN {quoted_name(name)} SET GENERATED BY DEFAULT;"
            yield f"column {name} is GENERATED ALWAYS AS IDENTITY and takes no values: {by_default}"
    guard = mapping.guard._asdict()
    if any(column not in found for column in guard.values()):
        yield f"it has no guard columns: {' '.join(guard_ddl(mapping).split())}"
    else:
        for name, column in guard.items():
            if found[column][0] not in {_GUARD_TYPES[name], "bigint"}:
                yield f"column {column} is {found[column][0]}, and should be {_GUARD_TYPES[name]}"


def _create(mapping: TopicMapping) -> str:
    columns = [f"{quoted_name(name)} text" for name in mapping.columns]
    key = ", ".join(map(quoted_name, mapping.key))
    guard = [f"{quoted_name(name)} {_GUARD_TYPES[part]}" for part, name in mapping.guard._asdict().items()]
    return f"CREATE TABLE {mapping.table} ({', '.join([*columns, *guard, f'PRIMARY KEY ({key})'])});"


def _columns(connection: Connection[Any], table: TableName) -> list[tuple[str, str, bool, bool, bool, str]]:
    return OwnCursor(connection).execute(statement("capture_columns"), [table.quoted()]).fetchall()


def _table(mapping: TopicMapping) -> TableName:
    if mapping.table is None:
        raise AssertionError(f"{mapping.topic} has a handler, and no table")
    return mapping.table


def _arrays(rows: Sequence[Sequence[bytes | None]]) -> list[TextArray]:
    return [TextArray(encoded_text_array(column)) for column in zip(*rows, strict=True)]


def _guards(changes: Sequence[Change]) -> list[BigintArray]:
    return [BigintArray(bigint_array(part)) for part in zip(*[each.guard for each in changes], strict=True)]


def _quoted(name: str) -> str:
    return parameter_safe(quoted_name(name))


def _list(texts: Any) -> str:
    return ", ".join(texts)
