"""Whether the WAL still holds all changes that the last progress record does not cover."""

from dataclasses import replace
from typing import Any

import pytest

from thresher.db import TableName
from thresher.db.log_slots import LogSlot, SlotMark, mark_of
from thresher.db.postgres.replication.connection import SystemIdentity
from thresher.db.problem import DatabaseLost
from thresher.tail.coverage import Coverage
from thresher.tail.log_source import LogSource, TableSource
from thresher.tail.log_span import UNKNOWN, LogSpan, changed, goes_on, since_mark
from thresher.tail.log_state import (
    LogState,
    Missing,
    adopted,
    judged,
    missing,
    not_published,
    on_timeline,
    require_unchanged,
    what_to_do,
)
from thresher.tail.position import Position
from thresher.tail.progress import TailOrigin

ORIGIN = TailOrigin(outbox_id="o", system_id="7/5", timeline=2, term="t")
COVERED = Coverage(position=Position(500, 400, 0), noted=600, committed_us=1_800_000_000_000_000)
STATE = LogState(system_id="7", timeline=2, end=900, confirmed=600)
SLOT = LogSlot(
    name="s", plugin="pgoutput", database="d", active_pid=5, wal_status="reserved", invalidation=None, confirmed=600,
    restart=500, retained_bytes=0, safe_bytes=None, failover=False,
)  # fmt: skip


def test_a_continued_log_misses_nothing() -> None:
    assert missing(ORIGIN, COVERED, STATE) is None
    assert missing(ORIGIN, COVERED, replace(STATE, confirmed=100)) is None


def test_a_slot_beyond_the_noted_position_was_recreated() -> None:
    found = missing(ORIGIN, COVERED, replace(STATE, confirmed=601))
    assert found is not None
    assert "made again" in found.why
    assert adopted(COVERED, found, replace(STATE, confirmed=601)) == replace(COVERED, noted=601)


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, system_id="8"),
        replace(STATE, timeline=3, left=((1, 100), (2, 500))),
        replace(STATE, timeline=3, left=((1, 100),)),
        replace(STATE, end=500),
    ],
    ids=["another system", "a timeline that begins before", "an unknown timeline", "a shorter log"],
)
def test_a_log_without_published_changes_is_foreign(state: LogState) -> None:
    found = missing(ORIGIN, COVERED, state)
    assert found is not None
    assert found.elsewhere
    # In another WAL none of the positions has a meaning.
    assert adopted(COVERED, found, state) == Coverage(noted=state.confirmed)


def test_a_timeline_that_begins_after_published_changes_is_accepted() -> None:
    assert missing(ORIGIN, COVERED, replace(STATE, timeline=4, left=((2, 501), (3, 700)), confirmed=500)) is None


def test_a_slot_made_on_the_new_timeline_is_noticed() -> None:
    # Positions beyond the end of the old timeline have no meaning on the new one.
    noted = replace(COVERED, noted=900)
    state = replace(STATE, timeline=3, left=((2, 600),), end=1000)
    found = missing(ORIGIN, noted, replace(state, confirmed=800))
    assert found is not None
    assert "made again" in found.why
    assert missing(ORIGIN, noted, replace(state, confirmed=600)) is None
    assert judged(ORIGIN, noted, replace(state, confirmed=550), accepted=False) == replace(COVERED, noted=600)
    assert judged(ORIGIN, noted, replace(state, confirmed=800), accepted=True) == replace(COVERED, noted=800)


def test_only_an_accepted_slot_may_miss_something() -> None:
    state = replace(STATE, confirmed=601)
    assert isinstance(judged(ORIGIN, COVERED, state, accepted=False), Missing)
    assert judged(ORIGIN, COVERED, state, accepted=True) == replace(COVERED, noted=601)
    other = replace(state, system_id="8")
    assert isinstance(judged(ORIGIN, COVERED, other, accepted=False), Missing)
    assert judged(ORIGIN, COVERED, other, accepted=True) == Coverage(noted=601)


@pytest.mark.parametrize("published", ["1/8/3/16384", "1/7/4/16384", "1/7/3/16390", "gone"])
def test_a_changed_publication_may_miss_inserts(published: str) -> None:
    span = LogSpan(published="1/7/3/16384", first_xid=700)
    assert changed(span, published)
    assert not changed(span, span.published)
    assert not changed(UNKNOWN, published)


def test_a_span_goes_on_from_where_it_began() -> None:
    now = LogSpan(published="1/7/3/16384", first_xid=900)
    assert goes_on(replace(now, first_xid=700), now) == replace(now, first_xid=700)
    assert goes_on(UNKNOWN, now) == now
    assert now.table == 16384
    assert UNKNOWN.table is None


def test_transactions_after_a_mark_are_in_the_log() -> None:
    span, mark = LogSpan(published="1/2/3/4", first_xid=900), SlotMark(published="1/2/3/4", position=70, first_xid=700)
    assert since_mark(span, mark, 70) == replace(span, first_xid=700)
    assert since_mark(span, None, 70) == span
    assert since_mark(span, mark, 71) == span, "the slot was made later, or advanced by others"
    assert since_mark(span, replace(mark, published="1/9/3/4"), 70) == span, "inserts may have been left out"
    assert since_mark(span, replace(mark, first_xid=950), 70) == span


def test_a_mark_is_read_from_its_note_alone() -> None:
    mark = SlotMark(published="1/2/3,5/4", position=2**33 + 7, first_xid=2**32 + 5)
    assert mark_of(mark.note) == mark
    for other in (None, "", "orders for the shop", f"{mark.note} or so"):
        assert mark_of(other) is None


def test_positions_beyond_a_timelines_end_mean_nothing() -> None:
    assert on_timeline(ORIGIN, COVERED, STATE) == COVERED
    later = replace(STATE, timeline=3, left=((2, 550),))
    assert on_timeline(ORIGIN, COVERED, later) == replace(COVERED, noted=550)


def test_a_changed_publication_is_reported_with_position_and_remedy() -> None:
    told = not_published(0x258, TableSource(table=TableName(table="orders", schema="public")), "shop")
    assert "after 0/258 may be missing" in told
    assert "can be inserted again" in told
    assert "thresher adopt shop" in told


def test_possible_losses_are_named_with_the_remedy() -> None:
    table = TableName(table="orders", schema="public")
    told = what_to_do(COVERED, TableSource(table=table), "shop")
    assert "after 0/258 (2027-01-15 08:00:00 UTC)" in told
    assert "can be inserted again" in told
    assert "thresher adopt shop" in told
    assert "nothing is left to read" in what_to_do(COVERED, LogSource(outbox=table), "shop")


@pytest.mark.parametrize(
    ("changes", "slot", "why"),
    [
        ({"system_id": "8"}, SLOT, "failing over"),
        ({"timeline": 3}, SLOT, "failing over"),
        ({}, None, "failing over"),
        ({}, replace(SLOT, active_pid=None), "failing over"),
        ({}, replace(SLOT, confirmed=601), "made again"),
    ],
)
def test_a_stream_of_another_log_is_closed(changes: dict[str, Any], slot: LogSlot | None, why: str) -> None:
    streamed = SystemIdentity(**{"system_id": "7", "timeline": 2, "position": 900, **changes})
    with pytest.raises(DatabaseLost, match=why):
        require_unchanged(STATE, streamed, slot, 600)
    assert require_unchanged(STATE, SystemIdentity(system_id="7", timeline=2, position=900), SLOT, 600) == 600
