"""The SQL of a dialect, one statement a file, found by name and bound to a table.

A file opens with comments that say which index serves it and what fences it; then comes the text, with `{table}` where
the quoted name goes, `{dead}` and `{archive}` where those of its dead rows' table and of its archive go, and marks for
parts that are statements' texts themselves. Nothing else is ever put into a statement: values are parameters.
"""

import re
from functools import cache
from importlib import resources
from typing import LiteralString

from thresher.db.names import TableName

# Tables beside an outbox, by how their names end.
_COMPANIONS = ("dead", "archive")


def statement(name: str, table: TableName | None = None, *, dialect: str = "postgres", **parts: str) -> LiteralString:
    """Return the named statement, bound to the table it asks for, with these parts of it; an unknown name is a
    programming error."""
    text = _text(dialect, name)
    names: dict[str, str] = {}
    if table is not None:
        names = {"{table}": table.quoted()} | {f"{{{each}}}": table.companion(f"_{each}") for each in _COMPANIONS}
    # In a statement with parameters a percent sign of the name must not look like one.
    if any("%s" in each or "%(" in each for each in (text, *parts.values())):
        names = {mark: name.replace("%", "%%") for mark, name in names.items()}
    names |= {f"{{{mark}}}": part for mark, part in parts.items()}
    if not names:
        return text
    # The one place where text becomes a statement: a file of ours, and names that psycopg quoted. In one pass, since a
    # name may look like a mark.
    bound: LiteralString = re.sub("|".join(map(re.escape, names)), lambda found: names[found.group()], text)
    return bound


@cache
def _text(dialect: str, name: str) -> LiteralString:
    lines = resources.files("thresher.db").joinpath(dialect, f"{name}.sql").read_text(encoding="utf-8").splitlines()
    # The opening comments are for readers of the repository, not for the server's log.
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)
