"""What a database role tries that it must not do."""

import contextlib
from collections.abc import Callable, Iterable

import psycopg

# What Postgres says to a role that lacks a right, or that does not own a table.
REFUSED = psycopg.errors.InsufficientPrivilege


def try_all(dsn: str, statements: Iterable[str]) -> None:
    """Check that each statement, in a transaction that commits, is refused or finds nothing."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            with contextlib.suppress(REFUSED), connection.transaction():
                cursor = connection.execute(statement.encode())
                found = cursor.fetchall() if cursor.description is not None else cursor.rowcount
                # A grant without the right to it is a warning.
                assert found in (0, []) or statement.startswith("GRANT"), f"allowed: {statement}, {found}"


def anywhere(*tables: str, but: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Return attacks that no printed role may do on any table."""
    made = [
        statement.format(table=table)
        for table in tables
        for statement in (
            "TRUNCATE {table}",
            "ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
            "ALTER TABLE {table} ADD COLUMN more text",
            "CREATE TRIGGER t BEFORE INSERT ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "CREATE RULE r AS ON INSERT TO {table} DO INSTEAD NOTHING",
            "CREATE POLICY p ON {table} USING (true)",
            "CREATE INDEX ON {table} ((1))",
            "DROP TABLE {table}",
            "GRANT ALL ON {table} TO PUBLIC",
            "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
        )
    ]
    return [*(each for each in made if not but(each)), "CREATE TABLE planted (n int)", "CREATE SCHEMA planted"]
