"""DDL of ours that may be run again: what is there already is left as it is.

An index gets the name that Postgres would choose for it, so that one that was made without a name is found too. A name
that does not fit is left to Postgres, which would cut it: such an index is made once more each time, and does no harm.
"""

import re

from thresher.db.names import IDENTIFIER_BYTES

_PART = r'"(?:[^"]|"")+"'
_TABLE = re.compile(r"^CREATE TABLE (?!IF NOT EXISTS)", re.MULTILINE)
_INDEX = re.compile(rf"^CREATE (UNIQUE )?INDEX ON (((?:{_PART}\.)?({_PART})) \(([a-z_, ]+)\)[^;]*);", re.MULTILINE)


def repeatable(ddl: str) -> str:
    """Return statements of our own files so that they can be run any number of times."""
    made: dict[str, list[str]] = {}

    def named(found: re.Match[str]) -> str:
        unique, index, _, table, columns = found.groups()
        name = f"{table[1:-1]}_{columns.replace(', ', '_')}_idx"
        same = made.setdefault(name, [])
        if index not in same:
            same.append(index)
        if number := same.index(index):
            # As Postgres tells indexes on the same columns apart.
            name = f"{name}{number}"
        if len(name.replace('""', '"').encode()) > IDENTIFIER_BYTES:
            return found.group()
        return f'CREATE {unique or ""}INDEX IF NOT EXISTS "{name}" ON {index};'

    return _INDEX.sub(named, _TABLE.sub("CREATE TABLE IF NOT EXISTS ", ddl))
