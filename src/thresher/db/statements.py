"""The SQL of a dialect, one statement a file, found by name and bound to a table.

A file opens with comments that say which index serves it and what fences it; then comes the text, with `{table}` where
the quoted name goes. Nothing else is ever put into a statement: values are parameters.
"""

from functools import cache
from importlib import resources
from typing import LiteralString

from thresher.db.names import TableName


def statement(name: str, table: TableName | None = None, *, dialect: str = "postgres") -> LiteralString:
    """Return the named statement, bound to the table it asks for; an unknown name is a programming error."""
    text = _text(dialect, name)
    if table is None:
        return text
    # In a statement with parameters a percent sign of the name must not look like one.
    quoted = table.quoted().replace("%", "%%") if "%s" in text else table.quoted()
    # The one place where text becomes a statement: a file of ours, and a name that psycopg quoted.
    return text.replace("{table}", quoted)


@cache
def _text(dialect: str, name: str) -> LiteralString:
    lines = resources.files("thresher.db").joinpath(dialect, f"{name}.sql").read_text(encoding="utf-8").splitlines()
    # The opening comments are for readers of the repository, not for the server's log.
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)
