"""Statements that give roles their rights: policies of tables that several pipelines share, and functions.

A policy gives a role some rows of a table, and hides the others. A function runs with the rights of its owner, a role
that nobody can log in as. So a caller can do what the function does, and nothing else with the tables behind it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from thresher.core.errors import InvalidInput
from thresher.db.names import IDENTIFIER_BYTES, TableName, quoted_name
from thresher.db.statements import statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function in the schema of an outbox: its name, the types of its arguments, what it returns, and its body."""

    schema: str
    name: str
    arguments: str
    returns: str
    body: str
    language: str = "sql"

    def __post_init__(self) -> None:
        if len(self.name.encode()) > IDENTIFIER_BYTES:
            raise InvalidInput(
                f"the function {self.name!r} has a name of more than {IDENTIFIER_BYTES} bytes, which Postgres cuts: "
                "give the outbox a shorter name"
            )

    def __str__(self) -> str:
        return f"{quoted_name(self.schema)}.{quoted_name(self.name)}({self.arguments})"


def functions_ddl(functions: Sequence[Function], *, owner: str, caller: str) -> str:
    """Return the statement that makes functions of one schema for a caller, and their owner if it is missing."""
    schema = functions[0].schema
    made = "\n".join(
        statement(
            "function_create",
            function=str(each),
            returns=each.returns,
            language=each.language,
            owner=quoted_name(owner),
            caller=quoted_name(caller),
            quote=_quote(each.body),
            body=each.body,
        )
        for each in functions
    )
    signatures = ", ".join(f"pg_catalog.to_regprocedure({literal(str(each))})" for each in functions)
    names = {"owner": quoted_name(owner), "owner_name": literal(owner)}
    names |= {"schema": quoted_name(schema), "schema_name": literal(schema)}
    return block_ddl("functions_create", functions=made, signatures=signatures, **names)


def shared_ddl(created: str, *tables: TableName) -> str:
    """Return the statements that create tables which pipelines share, with row level security."""
    names = ", ".join(literal(table.quoted()) for table in tables)
    return f"{created.rstrip()}\n{block_ddl('row_security', tables=names)}"


def policy_ddl(
    table: TableName, name: str, role: str, *, using: str, check: str | None = None, command: str = "ALL"
) -> str:
    """Return the statement that gives a role the rows for which `using` holds; it may write those of `check`."""
    parts = {
        "policy": quoted_name(_policy_name(name)),
        "on": table.quoted(),
        "role": quoted_name(role),
        "command": command,
        "using": using,
        "check": "" if check is None else f" WITH CHECK ({check})",
    }
    return block_ddl("policy_create", **parts)


def schema_usage(schema: str | None, role: str) -> Iterator[str]:
    """Yield the grant of a schema's objects by name; nothing without a schema, which the search_path decides."""
    if schema is not None:
        yield f"GRANT USAGE ON SCHEMA {quoted_name(schema)} TO {quoted_name(role)};"


def block_ddl(template: str, /, **parts: str) -> str:
    """Return a statement that is one block in dollar quotes."""
    return statement(template, None, quote=_quote(" ".join(parts.values())), **parts)


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return sql.Literal(text).as_string().strip()


def _policy_name(name: str) -> str:
    """Return a name that fits. Two names stay different."""
    if len(name.encode()) <= IDENTIFIER_BYTES:
        return name
    return f"{name.encode()[:40].decode(errors='ignore')} {hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _quote(text: str) -> str:
    """Return a dollar quote that does not occur in a text."""
    tag = "thresher"
    while f"${tag}$" in text:
        tag += "_"
    return f"${tag}$"
