"""Statements that give roles their rights: policies of tables that several pipelines share, and functions.

A policy gives a role some rows of a table, and hides the others. A function runs with the rights of its owner, a role
that nobody can log in as. So a caller can do what the function does, and nothing else with the tables behind it. Roles
belong to the whole server: no role of another database may act as that owner.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from thresher.core.errors import InvalidInput
from thresher.db.names import IDENTIFIER_BYTES, TableName, quoted_name
from thresher.db.postgres.cursor import OwnCursor
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


def functions_ddl(functions: Sequence[Function], *, owner: str | None, caller: str, rights: Sequence[str]) -> str:
    """Return the statement that makes functions of one schema for a caller, and their owner if it is missing.

    Without a name the owner's is derived from database and schema, where the statement runs. An owner that others could
    act as is refused. `rights` are what the owner needs on tables: see `to_owner`.
    """
    schema = functions[0].schema
    made = "\n".join(
        statement(
            "function_create",
            function=str(each),
            returns=each.returns,
            language=each.language,
            give=to_owner(f"ALTER FUNCTION {each} OWNER TO "),
            caller=quoted_name(caller),
            quote=_quote(each.body),
            body=each.body,
        )
        for each in functions
    )
    names = {"schema_name": literal(schema), "quoted_schema": literal(quoted_name(schema))}
    return block_ddl(
        "functions_create",
        owner=_derived_owner(schema) if owner is None else literal(owner),
        faults=statement("functions_role_faults", role="functions_owner", schema=literal(schema)),
        signatures=", ".join(f"pg_catalog.to_regprocedure({literal(str(each))})" for each in functions),
        functions=made,
        rights="\n".join(rights),
        **names,
    )


def to_owner(before: str, after: str = "") -> str:
    """Return the line for `functions_ddl` that executes a statement with the owner's name between these texts."""
    return f"  EXECUTE pg_catalog.concat({literal(before)}, quoted_owner, {literal(after)});"


def owner_policy(table: TableName, name: str) -> Iterator[str]:
    """Yield the lines for `functions_ddl` that let the owner of the functions read all rows of a table."""
    on = f"{quoted_name(_policy_name(name))} ON {table.quoted()}"
    yield f"  DROP POLICY IF EXISTS {on};"
    yield to_owner(f"CREATE POLICY {on} FOR SELECT TO ", " USING (true)")


def owner_faults(connection: psycopg.Connection[Any], schema: str, functions: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the roles that own the functions of these names: the printed statements refuse the same.

    In a session of ours: its search_path has nothing that others have planted.
    """
    cursor = OwnCursor(connection)
    owners = cursor.execute(statement("functions_owners"), {"schema": schema, "names": list(functions)}).fetchall()
    for (owner,) in owners:
        asked = statement("functions_role_faults", role=literal(owner), schema=literal(schema))
        (faults,) = cursor.execute(asked).fetchone() or (None,)
        if faults is not None:
            yield (
                f"functions run with the rights of the role {owner}, and others could act as it: let a superuser run "
                f"{faults}; or drop them, and print them with another --functions-role"
            )


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


def _derived_owner(schema: str) -> str:
    return statement("functions_role_name", schema=literal(schema), bytes=str(IDENTIFIER_BYTES))


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
