"""The soak's verdict on tracked queues finds every kind of fault."""

from typing import Any

from tests.queue.verdict import QueueVerdict
from tests.tracker.verdict import FAULTS, Timed, Tracked, judge
from thresher.queue.wire.marker import Marker, MarkerType, MessageId

ONE, TWO = MessageId(0, 1), MessageId(0, 2)


def start(at: int, place: MessageId = ONE, after: int = 100, **fields: Any) -> Timed:
    return Timed(at, Marker(type=MarkerType.START, message_id=place, redeliver_after_ms=after, **fields))


def acked(at: int, place: MessageId = ONE) -> Timed:
    return Timed(at, Marker(type=MarkerType.END, message_id=place, origin_id=place))


def decided(at: int, place: MessageId = ONE) -> Timed:
    return Timed(at, Marker(type=MarkerType.END, message_id=place, origin_id=ONE), by_tracker=True)


def kept(at: int, after: int, **fields: Any) -> Timed:
    return Timed(at, Marker(type=MarkerType.KEEPALIVE, message_id=ONE, redeliver_after_ms=after, **fields))


def faults(*markers: Timed, messages: dict[MessageId, str] | None = None, dead: tuple[str, ...] = ()) -> dict[str, int]:
    messages = {ONE: "a"} if messages is None else messages
    held = Tracked(
        messages=messages,
        origins={},
        markers=markers,
        dead=dead,
        confirmed=frozenset({"a"}),
        sent=frozenset({"a"}),
    )
    return {fault: count for fault, count in QueueVerdict.of(judge(held), FAULTS).counts.items() if count}


def test_acked_redelivered_and_dead_messages_are_no_fault() -> None:
    assert faults(start(0), acked(50)) == {}
    again = {ONE: "a", TWO: "a"}
    assert faults(start(0), decided(120), start(130, TWO), acked(140, TWO), messages=again) == {}
    assert faults(start(0), kept(50, 0, reject_reason="no"), decided(60), dead=("a",)) == {}
    late = (start(0), acked(110), decided(115), start(130, TWO), acked(140, TWO))
    assert faults(*late, messages=again) == {}, "an ack after its deadline"


def test_a_message_that_nobody_processed_is_lost() -> None:
    assert faults() == {"lost": 1}
    assert faults(start(0)) == {"lost": 1}
    assert faults(start(0), decided(120), messages={ONE: "a", TWO: "a"}) == {"lost": 1}


def test_a_redelivered_message_acked_in_time_is_repeated() -> None:
    assert faults(start(0), acked(50), decided(120)) == {"repeated": 1}
    assert faults(start(0), kept(90, 100), acked(150), decided(200)) == {"repeated": 1}


def test_a_delivery_redelivered_twice_is_repeated() -> None:
    assert faults(start(0), decided(120), decided(130), acked(140)) == {"repeated": 1}
    assert faults(start(0), decided(120), dead=("a", "a")) == {"repeated": 1}


def test_a_message_that_came_again_before_its_deadline_is_early() -> None:
    assert faults(start(0), decided(90), dead=("a",)) == {"early": 1}
    assert faults(start(0), kept(90, 100), decided(150), dead=("a",)) == {"early": 1}
    assert faults(start(0), start(50, read_to=1, after=10), decided(70), dead=("a",)) == {"early": 1}, (
        "a copy is no Start"
    )


def test_a_message_that_nobody_sent_is_a_phantom() -> None:
    assert faults(start(0), acked(50), messages={ONE: "a", TWO: "b"}) == {"phantom": 1}
    assert faults(start(0), acked(50), dead=("c",)) == {"phantom": 1}
