"""Markers that are remembered for copies of a Start: by message, half by half, and by the message's origin."""

from typing import Any

from thresher.queue.wire.marker import Marker, MarkerType, MessageId, encode, parse
from thresher.tracker.protocol.recent import RecentMarkers

ID = (0, 7)
OURS, ANOTHERS = (0, 3, 1_000), (0, 5, 2_000)


def marker(type_: MarkerType, origin: tuple[int, int, int] | None) -> Any:
    """Return a marker of the message with the id `ID`. kafka-mq-go's markers name no origin."""
    named: dict[str, Any] = {}
    if origin is not None:
        named = {"origin_id": MessageId(*origin[:2]), "enqueued_at_ms": origin[2]}
    return parse(encode(Marker(type=type_, message_id=MessageId(*ID), **named)))


def test_a_marker_of_another_message_with_the_id_is_ignored() -> None:
    recent = RecentMarkers()
    recent.note(ID, 10, marker(MarkerType.END, ANOTHERS))
    assert recent.after(ID, OURS, 0) is None
    assert recent.after(ID, ANOTHERS, 0) is not None


def test_a_marker_without_origin_applies_to_its_id() -> None:
    recent = RecentMarkers()
    recent.note(ID, 10, marker(MarkerType.END, None))
    assert recent.after(ID, OURS, 10) is not None
    assert recent.after(ID, OURS, 11) is None, "it is older than the copy"


def test_an_end_takes_precedence_over_a_later_keepalive() -> None:
    recent = RecentMarkers()
    recent.note(ID, 10, marker(MarkerType.END, OURS))
    recent.note(ID, 11, marker(MarkerType.KEEPALIVE, OURS))
    found = recent.after(ID, OURS, 5)
    assert found is not None
    assert found.type == MarkerType.END


def test_markers_are_kept_for_a_window_and_then_dropped() -> None:
    recent = RecentMarkers(window=10)
    recent.note(ID, 1, marker(MarkerType.END, OURS))
    recent.note((0, 8), 12, marker(MarkerType.END, None))
    assert recent.after(ID, OURS, 0) is not None, "the older half"
    recent.note((0, 9), 23, marker(MarkerType.END, None))
    assert recent.after(ID, OURS, 0) is None


def test_only_what_a_copy_needs_of_a_marker_is_remembered() -> None:
    written = Marker(
        type=MarkerType.KEEPALIVE, message_id=MessageId(*ID), key=b"k" * 2_000, value=bytes(2_000),
        redeliver_after_ms=7, released=True, undelivered=True, reject_reason="no" * 500,
    )  # fmt: skip
    recent = RecentMarkers()
    recent.note(ID, 10, parse(encode(written)))
    found = recent.after(ID, OURS, 5)
    assert found is not None
    assert (found.type, found.redeliver_after_ms, found.released, found.undelivered) == (written.type, 7, True, True)
    assert found.reject_reason == "no" * 100
    assert found.ByteSize() < 250
