"""The functions by which an operator lists, shows, puts back and drops dead rows, and can do nothing else.

Their bodies are the statements that the tables' owner would execute. A function belongs to one outbox: it takes no name
of a table.
"""

from typing import Any

import psycopg

from thresher.db.names import TableName, quoted_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dead_rows import PostgresDeadRows, dead_statements
from thresher.db.postgres.rights.ddl import Function
from thresher.db.shape import Shape
from thresher.db.statements import statement

# The parameters of each function, and their types.
_CHOICE = {"topic": "text", "kind": "text", "ids": "bigint[]"}
_PARAMETERS = {"list": {**_CHOICE, "rows": "bigint"}, "show": {"id": "bigint"}, "replay": _CHOICE, "drop": _CHOICE}
_FATE = "dead_time timestamptz, kind text, reason text, attempts integer, blocking boolean"
_LISTED = "id bigint, create_time timestamptz, kafka_topic text, kafka_key {key}, value_bytes integer, {fate}"
_SHOWN = (
    "id bigint, create_time timestamptz, kafka_topic text, kafka_key {key}, kafka_value {key}, "
    "kafka_header_keys text[], kafka_header_values {key}[], {fate}"
)


def dead_functions(outbox: TableName, shape: Shape) -> list[Function]:
    """Return the functions of an outbox, whose schema must be given."""
    content = "text" if shape is Shape.GOHARVEST else "bytea"
    found = {"list": _LISTED, "show": _SHOWN}
    made = []
    for what, statements in dead_statements(outbox, shape).items():
        names = {name: f"${number}" for number, name in enumerate(_PARAMETERS[what], 1)}
        bodies = [each % names for each in statements]
        if what in found:
            body, language = bodies[-1], "sql"
            returns = f"TABLE ({found[what].format(key=content, fate=_FATE)})"
        else:
            changes = "\n".join(f"{each.rstrip()};" for each in bodies)
            body, language, returns = statement("function_changes", statements=changes), "plpgsql", "bigint"
        made.append(
            Function(
                schema=outbox.schema or "",
                name=_name(outbox, what),
                arguments=", ".join(_PARAMETERS[what].values()),
                returns=returns,
                body=body,
                language=language,
            )
        )
    return made


def dead_function_names(outbox: TableName) -> list[str]:
    """Return the names of these functions."""
    return [_name(outbox, what) for what in _PARAMETERS]


def reachable_dead_rows(connection: psycopg.Connection[Any], outbox: TableName, shape: Shape) -> PostgresDeadRows:
    """Return the dead rows of an outbox, through the functions if this session's role may not read the table."""
    names = {_name(outbox, what): what for what in _PARAMETERS}
    asked = {"dead": outbox.companion("_dead"), "names": list(names)}
    row = OwnCursor(connection).execute(statement("dead_access"), asked).fetchone()
    if row is None or row[1]:
        return PostgresDeadRows(connection, outbox, shape)
    schema, _, callable_ = row
    calls = {names[name]: [_call(schema, name, _PARAMETERS[names[name]])] for name in callable_}
    return PostgresDeadRows(connection, outbox, shape, statements=calls)


def _name(outbox: TableName, what: str) -> str:
    return f"{outbox.table}_dead_{what}"


def _call(schema: str, name: str, parameters: dict[str, str]) -> Any:
    function = f"{quoted_name(schema)}.{quoted_name(name)}".replace("%", "%%")
    arguments = ", ".join(f"%({each})s::{type_}" for each, type_ in parameters.items())
    return statement("function_call", function=function, arguments=f"({arguments})")
