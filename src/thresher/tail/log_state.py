"""Decides whether the WAL still holds every change that the last progress record does not cover. Pure.

1. If the system is another one, or the record's timeline ended before its position, published changes are not in this
   database.
2. If the slot is confirmed beyond the position that the record notes, it was recreated, or advanced by others. The slot
   does not have the changes committed in between. A noted position counts only up to the end of its own timeline.
3. An operator may adopt the slot as it is. That holds until the next term's first record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from thresher.db.log_slots import LogSlot
from thresher.db.lsn import lsn_text
from thresher.db.postgres.replication.connection import SystemIdentity
from thresher.db.problem import DatabaseLost
from thresher.tail.coverage import Coverage
from thresher.tail.log_source import Source, TableSource
from thresher.tail.progress import TailOrigin

CHANGED = (
    "the publication, or the table under this name, was changed; an insert that it did not publish is not in the WAL, "
    "also if all is as before now"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The WAL's system, timeline and end, the ends of earlier timelines, and the slot's confirmed position."""

    system_id: str
    timeline: int
    end: int
    # Earlier timelines, each with the position where it ended.
    left: Sequence[tuple[int, int]] = ()
    confirmed: int
    # Identity of the publication and the table: see `LogSpan.published`.
    published: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why committed changes may be missing. `elsewhere`: the record's positions mean nothing in this WAL."""

    why: str
    elsewhere: bool = False


def missing(origin: TailOrigin, coverage: Coverage, state: LogState) -> Missing | None:
    """Return why changes may be missing; None if none can be."""
    system = origin.system_id.partition("/")[0]
    if system != state.system_id:
        return Missing(f"the WAL is that of another system ({state.system_id}, progress was made on {system})", True)
    covered = lsn_text(coverage.position.commit)
    if origin.timeline != state.timeline:
        end = dict(state.left).get(origin.timeline)
        if end is None:
            return Missing(
                f"the WAL does not descend from timeline {origin.timeline}, on which progress was made", True
            )
        if coverage.position.commit >= end:
            why = f"the database was restored or failed over to timeline {state.timeline}, which begins at"
            return Missing(f"{why} {lsn_text(end)}: commits up to {covered} were published and are lost there", True)
    elif coverage.position.commit >= state.end:
        return Missing(f"the WAL ends at {lsn_text(state.end)}, before {covered}, up to where it was published", True)
    noted = on_timeline(origin, coverage, state).noted
    if state.confirmed > noted:
        return Missing(
            f"the slot begins at {lsn_text(state.confirmed)}, beyond {lsn_text(noted)}: it was dropped and made again, "
            "or advanced by someone else"
        )
    return None


def on_timeline(origin: TailOrigin, coverage: Coverage, state: LogState) -> Coverage:
    """Return a record's coverage for this WAL: the noted position is at most the end of the record's own timeline."""
    if origin.timeline == state.timeline:
        return coverage
    return replace(coverage, noted=min(coverage.noted, dict(state.left).get(origin.timeline, coverage.noted)))


def judged(origin: TailOrigin, coverage: Coverage, state: LogState, *, accepted: bool) -> Coverage | Missing:
    """Return the coverage of another attempt's record in this WAL, or why changes may be missing.

    `accepted`: an operator has adopted the slot after that record was written.
    """
    found = missing(origin, coverage, state)
    here = on_timeline(origin, coverage, state)
    if accepted:
        return adopted(here, found, state)
    return here if found is None else found


def require_unchanged(state: LogState, identity: SystemIdentity, slot: LogSlot | None, noted: int) -> int:
    """Return where an open stream begins. While it is open, nobody else can advance or drop its slot.

    Raises `DatabaseLost` if this is not the WAL that was checked before: the next attempt checks again.
    """
    judged_log, streamed = (state.system_id, state.timeline), (identity.system_id, identity.timeline)
    if judged_log != streamed:
        raise DatabaseLost(
            f"the WAL is streamed by system {streamed[0]} on timeline {streamed[1]}; a moment ago it was "
            f"{judged_log[0]} on {judged_log[1]}: the database is failing over"
        )
    if slot is None or slot.active_pid is None:
        raise DatabaseLost(
            "this session's server does not show the slot as active, although it is streamed: the database is failing "
            "over"
        )
    if (slot.confirmed or 0) > noted:
        raise DatabaseLost(f"slot {slot.name!r} was made again, or advanced by someone else, a moment ago")
    return slot.confirmed or 0


def adopted(coverage: Coverage, found: Missing | None, state: LogState) -> Coverage:
    """Return the coverage after an operator has adopted the slot as it is."""
    if found is not None and found.elsewhere:
        return Coverage(noted=state.confirmed)
    return replace(coverage, noted=max(coverage.noted, state.confirmed))


def not_published(confirmed: int, source: Source, name: str) -> str:
    """Return the message about a changed publication. The slot was not confirmed after the last check of it."""
    why = f"committed rows may be missing: {CHANGED}"
    return f"{why}. {what_to_do(Coverage(noted=confirmed), source, name)}"


def what_to_do(coverage: Coverage, source: Source, name: str) -> str:
    """Return after which position rows may be missing, and what to do about it."""
    when = ""
    if coverage.committed_us:
        when = f" ({datetime.fromtimestamp(coverage.committed_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC)"
    since = f"What was committed after {lsn_text(coverage.noted)}{when} may be missing in Kafka."
    go_on = (
        f"To go on from where the slot is: 'thresher tail slot create' if there is none, and 'thresher adopt {name}'"
    )
    if isinstance(source, TableSource):
        return (
            f"{since} Rows that are still in {source.table} can be inserted again: {go_on}, start the tail, which "
            "deletes none of them, and insert those that are missing in Kafka again"
        )
    return f"{since} Messages without a table are stored nowhere else: nothing is left to read. {go_on}"
