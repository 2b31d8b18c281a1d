"""The SQL of a dialect, one statement a file, found by name and bound to a table.

A file opens with comments that say which index serves it and what fences it; then comes the text, with `{table}` where
the quoted name goes. Nothing else is ever put into a statement: values are parameters.
"""

from functools import cache
from importlib import resources
from typing import LiteralString, cast

from psycopg import sql

from thresher.db.names import TableName


def statement(name: str, table: TableName | None = None, *, dialect: str = "postgres") -> LiteralString:
    """Return the named statement, bound to the table it asks for; an unknown name is a programming error."""
    text = sql.SQL(_text(dialect, name))
    bound = text if table is None else text.format(table=table.identifier())
    # The one place where text becomes a statement: a file of ours, and a name that psycopg quoted.
    return cast("LiteralString", bound.as_string(None))


@cache
def _text(dialect: str, name: str) -> LiteralString:
    lines = resources.files("thresher.db").joinpath(dialect, f"{name}.sql").read_text(encoding="utf-8").splitlines()
    # The opening comments are for readers of the repository, not for the server's log.
    while lines and lines[0].startswith("--"):
        del lines[0]
    return cast("LiteralString", "\n".join(lines))
