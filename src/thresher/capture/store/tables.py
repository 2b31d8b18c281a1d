"""The tables of captures, and the names of their database sessions."""

import hashlib
from dataclasses import dataclass
from typing import LiteralString

from thresher.db import TableName, statement

# A session beside a capture that holds offsets for as long as it reads topics; its statements are planned as usual.
HOLDING_SESSION = "-c idle_in_transaction_session_timeout=0 -c enable_seqscan=on -c enable_bitmapscan=on"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTables:
    """The tables that all captures of one schema share. Without a schema, the search_path decides."""

    schema: str | None = None

    @property
    def captures(self) -> TableName:
        """Who leads each capture."""
        return TableName(table="thresher_captures", schema=self.schema)

    @property
    def offsets(self) -> TableName:
        """The stored offsets."""
        return TableName(table="thresher_capture_offsets", schema=self.schema)

    @property
    def dead(self) -> TableName:
        """The records that could not be applied."""
        return TableName(table="thresher_capture_dead", schema=self.schema)

    @property
    def all(self) -> tuple[TableName, ...]:
        """All of them."""
        return self.captures, self.offsets, self.dead

    def bound(self, name: str, *, parameters: bool = True) -> LiteralString:
        """Return the named statement, bound to whichever of the tables it asks for."""
        names = {"captures": self.captures, "offsets": self.offsets, "dead": self.dead}
        quoted: dict[str, str] = {mark: table.quoted() for mark, table in names.items()}
        if parameters:
            quoted = {mark: parameter_safe(each) for mark, each in quoted.items()}
        return statement(name, None, **quoted)


def parameter_safe(text: str) -> str:
    """Return a name for a statement that has parameters: a percent sign of the name must not look like one."""
    return text.replace("%", "%%")


def sessions(name: str, term: str = "") -> str:
    """Return how the names of a capture's database sessions begin; with a term, those of that term.

    Postgres keeps 63 bytes: the capture's own name may be longer.
    """
    return f"capture/{hashlib.sha256(name.encode()).hexdigest()[:10]}/{term}"


def shard_sessions(name: str, term: str, shard: int) -> str:
    """Return the name of the database sessions of one shard."""
    return f"{sessions(name, term)}/{shard}"[:63]


def visitor(name: str, what: str) -> str:
    """Return the name of a session beside the capture, which no take-over ends."""
    return f"capture-{what}/{name}"[:63]
