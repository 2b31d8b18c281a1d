"""Checks a tail's slot and publication: whether the WAL can be read with them, and if not, which statement fixes that.

Pure functions judge what the database reports. A slot has the WAL since it was made: earlier commits are not in it.
"""

import logging
from dataclasses import dataclass
from shlex import quote

from thresher.db.log_emitter import LogEmitter
from thresher.db.log_slots import LogServer, LogSlot, Publication
from thresher.db.lsn import lsn_text
from thresher.db.names import TableName, quoted_name
from thresher.db.postgres.replication.slots import PostgresSlots, publication_ddl
from thresher.db.problem import DatabaseRefused
from thresher.tail.log_source import LogSource, Source, TableSource

logger = logging.getLogger(__name__)

PLUGIN = "pgoutput"
_OLDEST = 140_000
# For a publication that leaves out inserts: fixing it does not bring those back.
_GONE_BY = ": rows that are inserted until this is fixed are never sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason why a tail cannot read the WAL, and the statement that fixes it.

    `of_tail`: this session's user lacks a right that nobody but the tail's role should have.
    """

    detail: str
    mend: str
    of_tail: bool = False

    def __str__(self) -> str:
        if self.of_tail:
            return f"{self.detail}. If this is the tail's role: {self.mend}. Otherwise run this as the tail's role"
        return f"{self.detail}. {self.mend}"


class LogUnreadable(DatabaseRefused):
    """The WAL cannot be read with this server, slot or publication: an operator has to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCheck:
    """The result of a check. `slot` is None if there is no such slot."""

    server: LogServer
    slot: LogSlot | None
    problems: tuple[Problem, ...]
    # Conditions that work now, but may become problems.
    warnings: tuple[str, ...] = ()


def check_slot(slots: PostgresSlots, slot: str, publication: str, source: Source) -> SlotCheck:
    """Check the server, the slot and the publication."""
    server, found = slots.server(), slots.slot(slot)
    table = _table(source)
    problems = (
        *server_problems(server),
        *publication_problems(publication, slots.publication(publication, table), table),
        *slot_problems(server, slot, found, source),
        *(
            emitter_problems(slots.emitter(source.outbox, source.placed).read(), source)
            if isinstance(source, LogSource)
            else ()
        ),
    )
    return SlotCheck(server=server, slot=found, problems=problems, warnings=tuple(slot_warnings(server, found)))


def require_readable(slots: PostgresSlots, slot: str, publication: str, source: Source) -> LogSlot:
    """Return the slot. Raises `LogUnreadable`, with every problem and the statement that fixes it."""
    check = check_slot(slots, slot, publication, source)
    if check.slot is None or check.problems:
        raise LogUnreadable("the WAL cannot be read: " + "; ".join(map(str, check.problems)))
    return check.slot


def create_slot(slots: PostgresSlots, slot: str, publication: str, source: Source) -> tuple[bool, LogSlot]:
    """Create the publication if it is missing, then the slot. Return whether the publication was created, and the slot.

    The order matters: a change from before its publication was created cannot be decoded. Afterwards a mark beside the
    publication tells that all rows of later transactions are in the slot. Raises `LogUnreadable` if the server or the
    publication is not suitable, and `DatabaseRefused` if the slot exists already.
    """
    server, table = slots.server(), _table(source)
    found = slots.publication(publication, table)
    problems = [*server_problems(server)]
    if found is not None:
        problems += publication_problems(publication, found, table)
    if problems:
        raise LogUnreadable("no slot can be made: " + "; ".join(map(str, problems)))
    if isinstance(source, LogSource):
        slots.emitter(source.outbox, source.placed).create()
    if found is None:
        slots.create_publication(publication, table)
    slots.create(slot, failover=server.has_failover_slots)
    if table is not None and not slots.mark(publication, table):
        logger.warning("publication %s is another's: rows from before the tail's first start will stay", publication)
    made = slots.slot(slot)
    if made is None:
        raise LogUnreadable(f"slot {slot!r} was dropped by others as soon as it was made")
    return found is None, made


def free_slot(slots: PostgresSlots, slot: str) -> None:
    """End the session that reads the slot, if we may: a suspended reader would keep the slot for ever."""
    try:
        slots.free(slot)
    except DatabaseRefused as error:
        # The session belongs to another role. Opening the stream waits for the slot.
        logger.warning("the session that reads slot %s was not ended: %s", slot, error)


def retained_bytes(slots: PostgresSlots, slot: str) -> int | None:
    """Return the bytes of WAL that the server keeps for the slot; None if there is no such slot, or its WAL is lost."""
    found = slots.slot(slot)
    return None if found is None else found.retained_bytes


def server_problems(server: LogServer) -> list[Problem]:
    """Return the problems of the server, and of the user's rights."""
    problems = []
    if server.version < _OLDEST:
        problems.append(
            Problem(
                detail=f"the server is Postgres {server.version // 10_000}, whose pgoutput does not send messages",
                mend="Postgres 14 or later is needed",
            )
        )
    if server.wal_level != "logical":
        problems.append(
            Problem(
                detail=f"wal_level is {server.wal_level}, but logical decoding needs 'logical'",
                mend="ALTER SYSTEM SET wal_level = 'logical', and restart the server (at a provider: its parameter "
                "for logical replication)",
            )
        )
    if not server.may_replicate:
        problems.append(
            Problem(
                detail=f"user {server.user} may not read the WAL",
                mend=f"ALTER ROLE {quoted_name(server.user)} REPLICATION",
                of_tail=True,
            )
        )
    return problems


def publication_problems(name: str, found: Publication | None, table: TableName | None) -> list[Problem]:
    """Return the problems of the publication. Without a table, it only has to exist."""
    if found is None:
        lost = "" if table is None else ": rows that are inserted until there is one are never sent"
        detail = f"there is no publication {name!r} in this database{lost}"
        return [Problem(detail=detail, mend=publication_ddl(name, table))]
    if table is None:
        return []
    quoted = quoted_name(name)
    problems = []
    if not found.includes_table:
        detail = f"publication {name!r} does not include {table}{_GONE_BY}"
        problems.append(Problem(detail=detail, mend=f"ALTER PUBLICATION {quoted} ADD TABLE {table}"))
    if not found.inserts:
        detail = f"publication {name!r} does not publish inserts{_GONE_BY}"
        problems.append(Problem(detail=detail, mend=f"ALTER PUBLICATION {quoted} SET (publish = 'insert')"))
    if found.row_filter is not None:
        detail = f"publication {name!r} leaves out rows of {table}: it has the filter {found.row_filter}{_GONE_BY}"
        problems.append(Problem(detail=detail, mend=f"ALTER PUBLICATION {quoted} SET TABLE {table}"))
    return problems


def slot_problems(server: LogServer, name: str, found: LogSlot | None, source: Source) -> list[Problem]:
    """Return the problems of the slot."""
    more = ", false, false, true" if server.has_failover_slots else ""
    literal = name.replace("'", "''")
    create = f"SELECT pg_create_logical_replication_slot('{literal}', '{PLUGIN}'{more})"
    recreate = f"SELECT pg_drop_replication_slot('{literal}'); {create}"
    if found is None:
        detail = f"there is no slot {name!r}: if it was dropped, what was committed since then is not kept"
        return [Problem(detail=detail, mend=f"{create}, or 'thresher tail slot create'")]
    if found.plugin != PLUGIN or found.database != server.database:
        what = f"a slot of {found.plugin or 'physical replication'}"
        where = "" if found.database in (None, server.database) else f" in database {found.database}"
        detail = f"{name!r} is {what}{where}, and not one of {PLUGIN} in {server.database}"
        return [Problem(detail=detail, mend="Name another slot; 'thresher tail slot create' makes one")]
    if found.lost:
        since = "" if found.confirmed is None else f" after {lsn_text(found.confirmed)}"
        left = (
            "rows that are still in the table can be inserted again"
            if isinstance(source, TableSource)
            else "messages without a table are stored nowhere else: nothing is left to read"
        )
        why = found.invalidation or "wal_removed"
        detail = f"the WAL of slot {name!r} is lost ({why}): what was committed{since} may be missing; {left}"
        mend = f"{recreate}; then raise max_slot_wal_keep_size, and run 'thresher adopt NAME' so that the tail goes on"
        return [Problem(detail=detail, mend=mend)]
    return []


def emitter_problems(found: LogEmitter, source: LogSource) -> list[Problem]:
    """Return the problems of the function that writes messages to the WAL, and of who else may."""
    if not found.exists or found.owner is None:
        detail = (
            f"there is no function {found.function}, with which writers put messages into the WAL, or no {found.keys}"
        )
        return [Problem(detail=detail, mend=_makes_both(source))]
    by_trusted = "Let a role that may own our tables own both"
    problems = [Problem(detail=each, mend=by_trusted) for each in found.strangers]
    function, owner = f"{found.function}(bytea)", quoted_name(found.owner)
    servers = [f"pg_catalog.{name.removeprefix('pg_catalog.')}" for name in found.server_functions]
    # The function seals bytes: its owner needs no other.
    grant = f"GRANT EXECUTE ON FUNCTION {', '.join(each for each in servers if 'bytea' in each)} TO {owner}"
    if not found.definer:
        detail = f"{function} runs with its caller's rights, who cannot read its keys"
        problems.append(Problem(detail=detail, mend=f"ALTER FUNCTION {function} SECURITY DEFINER"))
    if not found.owner_emits:
        detail = f"{found.owner}, the owner of {function}, may not write messages to the WAL"
        problems.append(Problem(detail=detail, mend=grant))
    if found.public_executes:
        detail = f"every role may execute {function}, and so publish"
        problems.append(Problem(detail=detail, mend=f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC"))
    if found.public_reads_keys:
        detail = f"every role may read {found.keys}, and so forge messages"
        problems.append(Problem(detail=detail, mend=f"REVOKE ALL ON {found.keys} FROM PUBLIC"))
    if not found.keys_readable:
        detail = f"user {found.user} may not read {found.keys}, with which messages are checked"
        mend = f"GRANT SELECT ON {found.keys} TO {quoted_name(found.user)}"
        problems.append(Problem(detail=detail, mend=mend, of_tail=True))
    if found.server_open and not source.accept_public_emit:
        detail = (
            "every role may write messages to the WAL by pg_logical_emit_message, of up to a gigabyte, which the tail "
            "has to receive although it publishes none of them ('accept_public_emit' accepts that)"
        )
        mend = f"REVOKE EXECUTE ON FUNCTION {', '.join(servers)} FROM PUBLIC; {grant}"
        problems.append(Problem(detail=detail, mend=mend))
    return problems


def _makes_both(source: LogSource) -> str:
    """Return the command that makes the function and the keys in the outbox's own schema."""
    name, place = source.outbox, source.placed
    command = f"thresher tail slot key --outbox {quote(name.table)}"
    if name.schema is not None:
        return f"'{command} --schema {quote(name.schema)}' makes both"
    if place is None or place.schema is None:
        return f"'{command}' makes both"
    return f"'{command}' makes both, with a search_path that leads to {quoted_name(place.schema)}"


def slot_warnings(server: LogServer, slot: LogSlot | None) -> list[str]:
    """Return what may soon make a slot unusable, although it can be read now; nothing without a readable slot."""
    if slot is None or slot.lost:
        return []
    warnings = []
    if slot.wal_status == "unreserved":
        warnings.append("the server may remove WAL that the slot needs at the next checkpoint: run the tail now")
    if slot.active_pid is None:
        warnings.append("nobody reads the slot: the server keeps the WAL, and its disk fills")
    if server.has_failover_slots and not slot.failover:
        warnings.append("the slot was made without failover: standbys do not have it, and after a failover it is gone")
    return warnings


def _table(source: Source) -> TableName | None:
    return source.table if isinstance(source, TableSource) else None
