"""The tables of captures, and the names of their database sessions."""

import hashlib
from dataclasses import dataclass
from typing import LiteralString

from thresher.db import TableName, statement
from thresher.db.postgres.rights.ddl import shared_ddl

# Options of a session beside a capture that locks offsets while it reads topics. The planner has its usual settings.
HOLDING_SESSION = "-c idle_in_transaction_session_timeout=0 -c enable_seqscan=on -c enable_bitmapscan=on"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTables:
    """The tables that all captures of one schema share. Without a schema, the search_path decides."""

    schema: str | None = None

    @property
    def captures(self) -> TableName:
        """The term of each capture's leader."""
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
        """All of capture's tables."""
        return self.captures, self.offsets, self.dead

    def ddl(self) -> str:
        """Return the statements that create the tables."""
        return shared_ddl(self.bound("capture_create", parameters=False), *self.all)

    def bound(self, name: str, *, parameters: bool = True) -> LiteralString:
        """Return the named statement with the names of the tables that it uses."""
        names = {"captures": self.captures, "offsets": self.offsets, "dead": self.dead}
        quoted: dict[str, str] = {mark: table.quoted() for mark, table in names.items()}
        if parameters:
            quoted = {mark: parameter_safe(each) for mark, each in quoted.items()}
        return statement(name, None, **quoted)


def parameter_safe(text: str) -> str:
    """Return a name for a statement with parameters: a percent sign in it must not look like a placeholder."""
    return text.replace("%", "%%")


def sessions(name: str, term: str = "") -> str:
    """Return the prefix of the application names of a capture's sessions; with a term, of that term's sessions.

    It has a hash of the capture's name, which may be longer than the 63 bytes that Postgres keeps.
    """
    return f"capture/{hashlib.sha256(name.encode()).hexdigest()[:10]}/{term}"


def shard_sessions(name: str, term: str, shard: int) -> str:
    """Return the application name of one shard's sessions."""
    return f"{sessions(name, term)}/{shard}"[:63]


def visitor(name: str, what: str) -> str:
    """Return the application name of a session beside the capture, which a take-over does not end."""
    return f"capture-{what}/{name}"[:63]
