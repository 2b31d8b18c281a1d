"""Whether the log, as it stands now, still holds all that the last progress record does not cover. Pure.

1. Another system, or a timeline that was left before the record's position: what was published is not in this database.
2. A slot that was confirmed beyond what the record has noted was made anew, or moved by others: what was committed in
   between is not kept for it. What was noted behind the point where a timeline was left means nothing on the next one.
3. An operator may accept the slot as it is. That holds until the first record of the term that found it accepted.
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
    "the publication, or the table under this name, was changed; an insert that it did not publish is not in the log, "
    "also if all is as before now"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStand:
    """The log now: its system, timeline and end, where earlier timelines ended, and how far the slot is confirmed."""

    system_id: str
    timeline: int
    end: int
    # Timelines before this one, each with where it was left.
    left: Sequence[tuple[int, int]] = ()
    confirmed: int
    # The publication and the table, as the database tells them apart.
    published: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """Committed changes may be missing, and why. `elsewhere`: positions of the record mean nothing in this log."""

    why: str
    elsewhere: bool = False


def missing(origin: TailOrigin, coverage: Coverage, stand: LogStand) -> Missing | None:
    """Return why changes may be missing, if they may."""
    system = origin.system_id.partition("/")[0]
    if system != stand.system_id:
        return Missing(f"the log is that of another system ({stand.system_id}, progress speaks of {system})", True)
    covered = lsn_text(coverage.position.commit)
    if origin.timeline != stand.timeline:
        end = dict(stand.left).get(origin.timeline)
        if end is None:
            return Missing(f"the log does not come from timeline {origin.timeline}, of which progress speaks", True)
        if coverage.position.commit >= end:
            why = f"the database was restored or failed over to timeline {stand.timeline}, which begins at"
            return Missing(f"{why} {lsn_text(end)}: commits up to {covered} were published and are lost there", True)
    elif coverage.position.commit >= stand.end:
        return Missing(f"the log ends at {lsn_text(stand.end)}, before {covered}, up to where it was published", True)
    noted = on_timeline(origin, coverage, stand).noted
    if stand.confirmed > noted:
        return Missing(
            f"the slot begins at {lsn_text(stand.confirmed)}, beyond {lsn_text(noted)}: it was made anew, or "
            "moved by others"
        )
    return None


def on_timeline(origin: TailOrigin, coverage: Coverage, stand: LogStand) -> Coverage:
    """Return what a record covers of this log: it has noted none beyond the point where its own timeline was left."""
    if origin.timeline == stand.timeline:
        return coverage
    return replace(coverage, noted=min(coverage.noted, dict(stand.left).get(origin.timeline, coverage.noted)))


def judged(origin: TailOrigin, coverage: Coverage, stand: LogStand, *, accepted: bool) -> Coverage | Missing:
    """Return what another attempt's record covers of this log, or what may be missing in it.

    `accepted`: an operator has adopted the slot as it is since that record was written.
    """
    found = missing(origin, coverage, stand)
    here = on_timeline(origin, coverage, stand)
    if accepted:
        return adopted(here, found, stand)
    return here if found is None else found


def require_unchanged(stand: LogStand, identity: SystemIdentity, slot: LogSlot | None, noted: int) -> int:
    """Return where a stream begins that is open by now, so that nobody else moves its slot.

    Raises `DatabaseLost` where it is not the log that was judged: the next attempt judges what there is then.
    """
    judged_log, streamed = (stand.system_id, stand.timeline), (identity.system_id, identity.timeline)
    if judged_log != streamed:
        raise DatabaseLost(
            f"the log is streamed by system {streamed[0]} on timeline {streamed[1]}, and not by {judged_log[0]} on "
            f"{judged_log[1]}, as a moment ago: the database is failing over"
        )
    if slot is None or slot.active_pid is None:
        raise DatabaseLost("the slot that is streamed is not read in this session's database: it is failing over")
    if (slot.confirmed or 0) > noted:
        raise DatabaseLost(f"slot {slot.name!r} was made anew or moved by others a moment ago")
    return slot.confirmed or 0


def adopted(coverage: Coverage, found: Missing | None, stand: LogStand) -> Coverage:
    """Return what counts as covered once an operator has adopted the slot as it is."""
    if found is not None and found.elsewhere:
        return Coverage(noted=stand.confirmed)
    return replace(coverage, noted=max(coverage.noted, stand.confirmed))


def not_published(confirmed: int, source: Source, name: str) -> str:
    """Return what a tail says of a publication that was changed: nothing was confirmed after the last look at it."""
    why = f"committed rows may be missing: {CHANGED}"
    return f"{why}. {what_to_do(Coverage(noted=confirmed), source, name)}"


def what_to_do(coverage: Coverage, source: Source, name: str) -> str:
    """Return from where on rows may be missing, and what can be done about it."""
    when = ""
    if coverage.committed_us:
        when = f" ({datetime.fromtimestamp(coverage.committed_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC)"
    since = f"What was committed behind {lsn_text(coverage.noted)}{when} may be missing in Kafka."
    go_on = (
        f"To go on from where the slot is: 'thresher tail slot create' if there is none, and 'thresher adopt {name}'"
    )
    if isinstance(source, TableSource):
        return (
            f"{since} Rows that are still in {source.table} can be read again: {go_on}, start the tail, which deletes "
            "none of them, and insert those that are missing anew"
        )
    return f"{since} Messages without a table are nowhere else: nothing is left to read. {go_on}"
