"""A pipeline's control row as its driver meets it: this outbox's, on this database; and the sessions of older terms."""

import logging
import uuid
from typing import Protocol

from thresher.core.errors import Superseded
from thresher.db.control import ControlRow, ControlRows, Incarnation, NewControlRow
from thresher.db.names import TableName
from thresher.db.problem import DatabaseRefused
from thresher.delivery.names import sessions
from thresher.delivery.problem import ForeignProgress

logger = logging.getLogger(__name__)


class DriverSession(Protocol):
    """A session of a driver in its outbox's database."""

    @property
    def outbox(self) -> TableName:
        """What the pipeline serves."""

    @property
    def control(self) -> ControlRows:
        """The control rows beside the outbox."""

    def incarnation(self) -> Incarnation:
        """Return which database this is."""

    def end_sessions(self, *, starting: str, but: str) -> None:
        """End other sessions whose application name starts so, except with `but`."""


def own_row(session: DriverSession, name: str, *, term: str, mode: str, shards: int) -> ControlRow:
    """Return the control row of this name, made if there is none. `ForeignProgress` if it is another outbox's."""
    system, outbox = session.incarnation().system_id, session.outbox
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
            f"{outbox} is relayed under the name {others[0]!r}: two relays would send its rows twice. Give this one "
            "that name, if it is to stand by for the other, or an outbox of its own; or, once that one has stopped "
            f"for good, 'thresher adopt {name} --instead-of {others[0]}'"
        )
    row = session.control.read(name)
    if row is None:
        raise Superseded("the control row was removed while this relay was starting")
    if row.outbox != outbox.quoted():
        raise ForeignProgress(f"the name {name!r} is that of a relay of {row.outbox}: {outbox} needs another name")
    require_known_system(name, row, system)
    return row


def require_known_system(name: str, row: ControlRow, system_id: str) -> None:
    """Raise `ForeignProgress` if this database is not the one that the control row was made in."""
    # Rows of earlier versions have the system alone.
    if row.system_id not in {system_id, system_id.partition("/")[0]}:
        raise ForeignProgress(
            f"the relay {name!r} belongs to another database ({row.system_id}, this is {system_id}): a copy must not "
            f"publish under its name. If this database has replaced it: 'thresher adopt {name}'"
        )


def end_older_sessions(session: DriverSession, name: str, term: str) -> None:
    """End the database sessions of older terms: a stopped one could hold row locks for ever."""
    try:
        session.end_sessions(starting=sessions(name), but=sessions(name, term))
    except DatabaseRefused as error:
        # They belong to another role: what they hold is freed when they have been idle for long enough.
        logger.warning("sessions of an older term were not ended: %s", error, extra={"relay": name})
