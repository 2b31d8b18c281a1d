"""The SQL of a dialect, one statement per file, found by name and bound to a table.

A file begins with comments that name the index that serves the statement, and its fence. In the text, `{table}` stands
for the quoted name of the table, `{dead}` and `{archive}` for its companion tables. Other placeholders stand for parts
that are SQL text themselves. Nothing else is ever inserted into a statement: values are parameters.
"""

import re
from functools import cache
from importlib import resources
from typing import LiteralString

from thresher.db.names import TableName

# Companion tables of an outbox, by the suffix of their names.
_COMPANIONS = ("dead", "archive")


def statement(name: str, table: TableName | None = None, *, dialect: str = "postgres", **parts: str) -> LiteralString:
    """Return the named statement, bound to a table, with these parts. An unknown name is a programming error."""
    text = _text(dialect, name)
    names: dict[str, str] = {}
    if table is not None:
        names = {"{table}": table.quoted()} | {f"{{{each}}}": table.companion(f"_{each}") for each in _COMPANIONS}
    # In a statement with parameters, a percent sign in a name must not look like a parameter.
    if any("%s" in each or "%(" in each for each in (text, *parts.values())):
        names = {mark: name.replace("%", "%%") for mark, name in names.items()}
    names |= {f"{{{mark}}}": part for mark, part in parts.items()}
    if not names:
        return text
    # The only place where text becomes a statement: our own files, and quoted names. One pass, because a name may look
    # like a placeholder.
    bound: LiteralString = re.sub("|".join(map(re.escape, names)), lambda found: names[found.group()], text)
    return bound


@cache
def _text(dialect: str, name: str) -> LiteralString:
    lines = resources.files("thresher.db").joinpath(dialect, f"{name}.sql").read_text(encoding="utf-8").splitlines()
    # The comments at the top are for readers of the repository, not for the server's log.
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)
