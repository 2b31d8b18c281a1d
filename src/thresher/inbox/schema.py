"""The inbox's tables: their DDL, and the check whether an existing table can recognize repeats."""

from collections.abc import Iterator
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

from thresher.db import TableName, statement
from thresher.db.catalog import Relation
from thresher.db.names import quoted_name
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.rights.ddl import schema_usage
from thresher.db.postgres.sessions import own_path, placed
from thresher.inbox.problem import InboxRefused

# The longest table name for which the dead table's name can be checked too.
_LONGEST = 53
_KEY = {"context", "message_id"}
_TYPES = {
    "context": "character varying(100)",
    "message_id": "character varying(255)",
    "received_time": "timestamp with time zone",
}


def inbox_ddl(name: TableName) -> LiteralString:
    """Return the statements that create the tables."""
    return statement("inbox_create", name)


def inbox_grants(name: TableName, role: str) -> Iterator[str]:
    """Yield the statements that let a role process messages once and set them aside. It cannot undo what it entered."""
    to = f"TO {quoted_name(role)};"
    yield from schema_usage(name.schema, role)
    yield f"GRANT SELECT (context, message_id), INSERT (context, message_id) ON {name} {to}"
    yield (
        "GRANT INSERT (context, message_id, kafka_topic, kafka_partition, kafka_offset, kafka_key, kafka_value, "
        f"kafka_header_keys, kafka_header_values, reason, attempts) ON {name.companion('_dead')} {to}"
    )


def inbox_operator_grants(name: TableName, role: str) -> Iterator[str]:
    """Yield the statements that let a role trim the inbox, and list and drop dead messages."""
    to = f"TO {quoted_name(role)};"
    yield from schema_usage(name.schema, role)
    # UPDATE is for the locks of a trim.
    yield f"GRANT SELECT, DELETE, UPDATE (received_time) ON {name} {to}"
    yield f"GRANT SELECT, DELETE ON {name.companion('_dead')} {to}"


def create_inbox(connection: Connection[Any], name: TableName) -> bool:
    """Create the tables in the caller's transaction; False if usable ones exist already. Raises `InboxRefused`."""
    if read_relation(connection, name) is None:
        try:
            # In a savepoint: if two services start at once, the slower one uses the other's tables.
            (place,) = placed(connection, name)
            with connection.transaction(), own_path(connection):
                OwnCursor(connection).execute(inbox_ddl(place))
        except (DuplicateTable, DuplicateObject, UniqueViolation) as error:
            if read_relation(connection, name) is None:
                raise InboxRefused(f"{name} cannot be created: {str(error).strip()}") from error
        else:
            return True
    if problems := check_inbox(connection, name):
        raise InboxRefused(f"{name} exists, but cannot be used as an inbox:\n" + "\n".join(problems))
    return False


def check_inbox(connection: Connection[Any], name: TableName) -> tuple[str, ...]:
    """Return the problems that keep a table from being an inbox."""
    relation = read_relation(connection, name)
    if relation is None:
        return (f"{name}: no such table",)
    dead = TableName(table=f"{name.table}_dead", schema=name.schema) if len(name.table.encode()) <= _LONGEST else None
    if dead is None:
        return tuple(_problems(relation))
    letters = read_relation(connection, dead)
    return (
        *_problems(relation),
        *(
            [f"{dead}: no such table, for messages that no handler can process"]
            if letters is None
            else [f"{dead}: {stranger}" for stranger in letters.strangers]
        ),
    )


def _problems(relation: Relation) -> Iterator[str]:
    if relation.kind != "r":
        yield "it is not an ordinary table"
        return
    if relation.persistence == "u":
        yield "it is UNLOGGED: a crash of the database empties it, and every repeat is processed"
    if relation.row_security:
        yield "row level security is on: rows that a policy hides are processed again"
    yield from _column_problems(relation)
    if not any(index.unique and set(index.columns) == _KEY and index.predicate is None for index in relation.indexes):
        yield "no primary key or unique index on (context, message_id): repeats are not recognized"
    if not any(index.columns[:1] == ("received_time",) for index in relation.indexes):
        yield "no index on (received_time): 'thresher inbox trim' would read the whole table for each batch"
    yield from relation.strangers
    for rule in relation.rules:
        yield f"rule {rule}: a rule can discard inserted rows"
    for trigger in relation.triggers:
        yield f"trigger {trigger}: if it discards a row, the message looks like a repeat"


def _column_problems(relation: Relation) -> Iterator[str]:
    for name, wanted in _TYPES.items():
        found = relation.columns.get(name)
        if found is None:
            yield f"column {name} is missing; it should be {wanted}"
        elif found.type not in {wanted, "text"}:
            yield f"column {name} is {found.type}; it should be {wanted}"
    received = relation.columns.get("received_time")
    if received is not None and received.default is None:
        yield "column received_time has no default; it should be clock_timestamp()"
    for name, column in relation.columns.items():
        if name not in _TYPES and column.not_null and column.default is None and not column.identity:
            yield f"column {name} is NOT NULL without a default: no row can be inserted"
