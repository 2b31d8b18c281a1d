"""Checks that a pipeline's control row belongs to this outbox and database, and ends the sessions of older terms."""

import logging
import uuid
from collections.abc import Sequence
from typing import Protocol

from thresher.db.control import ControlRow, ControlRows, Incarnation, NewControlRow
from thresher.db.names import TableName
from thresher.delivery.names import sessions
from thresher.delivery.problem import ForeignProgress

logger = logging.getLogger(__name__)


class DriverSession(Protocol):
    """A driver's session in its outbox's database."""

    @property
    def outbox(self) -> TableName:
        """The table that the pipeline relays."""

    @property
    def control(self) -> ControlRows:
        """The control rows, which are in the outbox's schema."""

    def incarnation(self) -> Incarnation:
        """Return the identity of this database: which system, and since which start."""

    def end_sessions(self, *, starting: str, but: str) -> Sequence[str]:
        """End our other sessions whose name starts with `starting`, but not with `but`; return those that stay."""


def own_row(
    session: DriverSession, name: str, *, term: str, mode: str, shards: int, outbox: TableName | None = None
) -> ControlRow:
    """Return the control row of this name, made if there is none. Raises `ForeignProgress` if another outbox has it.

    `outbox` is the name under which an outbox without a table is known.
    """
    system, outbox = session.incarnation().system_id, outbox or session.outbox
    new = NewControlRow(
        name=name,
        outbox=outbox.quoted(),
        outbox_id=str(uuid.uuid4()),
        system_id=system,
        term=term,
        mode=mode,
        shards=shards,
    )
    if others := session.control.insert(new):
        raise ForeignProgress(
            f"{outbox} is relayed under the name {others[0]!r}: two relays would send its rows twice. Give this relay "
            f"the name {others[0]!r} to make it a standby, or give it another outbox. If {others[0]!r} has stopped for "
            f"good: 'thresher adopt {name} --instead-of {others[0]}'"
        )
    row = session.control.read(name)
    if row is None:
        raise ForeignProgress(
            f"the name {name!r} belongs to the relay of another outbox, whose control row this database role may not "
            f"see: give {outbox} another name"
        )
    if row.outbox != outbox.quoted():
        raise ForeignProgress(f"the name {name!r} belongs to a relay of {row.outbox}: give {outbox} another name")
    require_known_system(name, row, system)
    return row


def require_known_system(name: str, row: ControlRow, system_id: str) -> None:
    """Raise `ForeignProgress` if this is not the database in which the control row was made."""
    # Control rows of earlier versions hold only the system's part of the id.
    if row.system_id not in {system_id, system_id.partition("/")[0]}:
        raise ForeignProgress(
            f"the relay {name!r} belongs to another database ({row.system_id}, this is {system_id}): a copy of a "
            f"database must not publish under its name. If this database has replaced it: 'thresher adopt {name}'"
        )


def end_older_sessions(session: DriverSession, name: str, term: str) -> None:
    """End the database sessions of older terms: a process that is stopped could hold row locks for ever."""
    if kept := session.end_sessions(starting=sessions(name), but=sessions(name, term)):
        # Postgres frees their locks once they have been idle for long enough.
        logger.warning(
            "sessions of an older term were not ended, because this role may not: %s; GRANT their role, or "
            "pg_signal_backend, to it",
            ", ".join(kept),
            extra={"relay": name},
        )
