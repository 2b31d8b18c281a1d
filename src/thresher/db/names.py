"""A table's name, checked once and quoted everywhere.

A name is taken literally: a dot or a quote in it belongs to the name. Postgres cuts a longer name silently, and two
tables could then become one, so a name that does not fit is refused.
"""

from dataclasses import dataclass

from thresher.core.errors import InvalidInput, shorten

# NAMEDATALEN - 1 of every stock Postgres.
IDENTIFIER_BYTES = 63
# Companions such as `<table>_dead` must fit as well.
_COMPANION_BYTES = 5


class InvalidName(InvalidInput):
    """A table or schema name that no database object can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """A table, optionally in a schema; without one the connection's search_path decides, as in SQL."""

    table: str
    schema: str | None = None

    def __post_init__(self) -> None:
        _check("table", self.table, IDENTIFIER_BYTES - _COMPANION_BYTES)
        if self.schema is not None:
            _check("schema", self.schema, IDENTIFIER_BYTES)

    def quoted(self) -> str:
        """Return the name as SQL text, every part in quotes."""
        return self.companion("")

    def companion(self, suffix: str) -> str:
        """Return the quoted name of a table that belongs to this one."""
        name = self.table + suffix
        return ".".join(map(quoted_name, [name] if self.schema is None else [self.schema, name]))

    def __str__(self) -> str:
        return self.quoted()


def quoted_name(name: str) -> str:
    """Return one part of a name, or a column's, as SQL text."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def schema_within(key: str, name: object, schema: object) -> str:
    """Return what to say of a key whose name seems to begin with its schema; nothing of any other.

    A name is taken literally: with a schema beside it, a dot belongs to it. Without one, nobody means a dot.
    """
    if schema is not None or not isinstance(name, str) or "." not in name:
        return ""
    before, _, last = name.rpartition(".")
    apart = f"give {key}: {shorten(last)} and schema: {shorten(before)}"
    return f"{apart}; a table with a dot in its own name needs its schema too"


def _check(kind: str, name: object, limit: int) -> None:
    if not isinstance(name, str):
        raise InvalidName(f"{kind} name {shorten(name)} is a {type(name).__name__}, not a string")
    if not name:
        raise InvalidName(f"{kind} name is empty")
    if "\0" in name:
        raise InvalidName(f"{kind} name {shorten(name)} contains a NUL character, which no identifier can hold")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{kind} name {shorten(name)} is not valid Unicode text") from None
    if size > limit:
        reason = (
            f"at most {limit} fit, because companions such as <table>_dead must stay within Postgres' "
            f"{IDENTIFIER_BYTES}"
            if limit < IDENTIFIER_BYTES
            else f"Postgres keeps {IDENTIFIER_BYTES} and silently drops the rest"
        )
        raise InvalidName(f"{kind} name {shorten(name)} has {size} bytes: {reason}")
