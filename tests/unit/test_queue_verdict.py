"""The verdict on queues finds every kind of broken promise, and accepts every history that keeps the promise."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.queue.verdict import FAULTS, Held, Placed, QueueVerdict, Told, identity_of, judge, payload_of
from thresher.queue.wire.marker import Marker, MarkerType, MessageId

REDELIVERY_MS = 4_000
ONE, TWO, DEAD, LATE = (MessageId(0, offset) for offset in range(4))


def start(place: MessageId, identity: str, at: tuple[int, int]) -> Placed:
    return Placed(*at, Marker(type=MarkerType.START, message_id=place, key=b"q", value=payload_of(identity, 20)))


def keep_alive(place: MessageId, at: tuple[int, int], after_ms: int = REDELIVERY_MS) -> Placed:
    return Placed(*at, Marker(type=MarkerType.KEEPALIVE, message_id=place, redeliver_after_ms=after_ms))


def end(place: MessageId, at: tuple[int, int]) -> Placed:
    return Placed(*at, Marker(type=MarkerType.END, message_id=place))


# The first was acked, the second nacked, the third is a dead letter. The fourth, of unknown outcome, arrived and waits.
HELD = Held(
    messages={ONE: "q/1", TWO: "q/2", DEAD: "q/3", LATE: "q/4"},
    markers=(
        start(ONE, "q/1", (1, 0)),
        start(TWO, "q/2", (1, 1)),
        keep_alive(ONE, (1, 2)),
        end(ONE, (1, 3)),
        keep_alive(TWO, (1, 4), 500),
        start(LATE, "q/4", (0, 0)),
    ),
    offsets={0: 4},
    dead=("q/3",),
)
TOLD = Told(
    confirmed={"q/1": ONE, "q/2": TWO, "q/3": DEAD},
    unknown=frozenset({"q/4", "q/5"}),
    refused=frozenset({"q/6"}),
    received=((ONE, "q/1"), (TWO, "q/2")),
    acked=frozenset({ONE}),
    given_back=frozenset({TWO}),
)
Change = Callable[[Held, Told], tuple[Held, Told]]


def verdict(held: Held, told: Told) -> QueueVerdict:
    return QueueVerdict.of(judge(held, told, redelivery_ms=REDELIVERY_MS))


def test_a_kept_promise_passes() -> None:
    assert verdict(HELD, TOLD).examples == {}
    assert verdict(HELD, TOLD).ok


def test_a_large_message_is_known_by_its_identity() -> None:
    assert identity_of(payload_of("q/7", 1000)) == "q/7"


def _held(change: Callable[[Held], dict[str, object]]) -> Change:
    return lambda held, told: (replace(held, **change(held)), told)  # type: ignore[arg-type]


def _told(change: Callable[[Told], dict[str, object]]) -> Change:
    return lambda held, told: (held, replace(told, **change(told)))  # type: ignore[arg-type]


def _without(place: MessageId, kind: MarkerType) -> Change:
    return _held(
        lambda held: {
            "markers": [
                each for each in held.markers if (each.marker.message_id, each.marker.type) != (place, kind)
            ]
        }
    )  # fmt: skip


def _also(*placed: Placed) -> Change:
    return _held(lambda held: {"markers": (*held.markers, *placed)})


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        pytest.param(
            "lost",
            _held(lambda held: {"messages": {**held.messages, ONE: "q/5"}, "markers": held.markers[1:]}),
            id="a confirmed message that is not there",
        ),
        pytest.param("lost", _without(LATE, MarkerType.START), id="passed without a Start"),
        pytest.param("lost", _without(ONE, MarkerType.END), id="a confirmed ack without an End"),
        pytest.param("lost", _without(TWO, MarkerType.KEEPALIVE), id="a confirmed nack without a marker"),
        pytest.param("lost", _held(lambda _: {"dead": ()}), id="a dead letter that is not there"),
        pytest.param("doubled", _also(start(TWO, "q/2", (1, 0))), id="two Starts"),
        pytest.param("doubled", _held(lambda _: {"dead": ("q/3", "q/3")}), id="two dead letters"),
        pytest.param("doubled", _held(lambda held: {"dead": (*held.dead, "q/1")}), id="a Start and a dead letter"),
        pytest.param("doubled", _told(lambda told: {"received": (*told.received, (ONE, "q/1"))}), id="delivered twice"),
        pytest.param(
            "doubled",
            lambda held, told: (
                replace(held, messages={**held.messages, MessageId(1, 0): "q/1"}),
                replace(told, unknown=frozenset(), confirmed={**told.confirmed, "q/4": LATE}),
            ),
            id="in the log twice",
        ),
        pytest.param(
            "phantom",
            _held(lambda held: {"messages": {**held.messages, MessageId(1, 0): "q/6"}}),
            id="refused and there",
        ),
        pytest.param(
            "phantom", _held(lambda held: {"messages": {**held.messages, MessageId(1, 0): "q/9"}}), id="never sent"
        ),
        pytest.param("phantom", _also(start(MessageId(2, 2), "q/9", (1, 9))), id="a Start of nothing"),
        pytest.param("phantom", _held(lambda held: {"dead": (*held.dead, "q/9")}), id="a dead letter of nothing"),
        pytest.param(
            "phantom", _told(lambda told: {"received": (*told.received, (LATE, "q/2"))}), id="another message"
        ),
        pytest.param(
            "phantom",
            _held(lambda held: {"markers": (start(ONE, "q/2", (1, 0)), *held.markers[1:])}),
            id="a Start with another message",
        ),
        pytest.param(
            "premature",
            _told(lambda told: {"received": (*told.received, (DEAD, "q/3"))}),
            id="delivered without a Start",
        ),
        pytest.param("premature", _held(lambda _: {"offsets": {0: 3}}), id="a Start before the offset"),
        pytest.param("misplaced", _also(keep_alive(ONE, (1, 9))), id="a KeepAlive behind an End"),
        pytest.param("misplaced", _also(end(TWO, (1, 9))), id="an End behind a nack"),
        pytest.param("misplaced", _also(keep_alive(LATE, (1, 9))), id="in another partition"),
        pytest.param("misplaced", _also(keep_alive(DEAD, (1, 9))), id="without a Start"),
        pytest.param(
            "misplaced",
            _held(lambda held: {"markers": (keep_alive(LATE, (0, 0)), start(LATE, "q/4", (0, 1)), *held.markers[:-1])}),
            id="before its Start",
        ),
        pytest.param(
            "waiting",
            lambda held, told: (
                replace(held, offsets={0: 3}, markers=held.markers[:-1]),
                told,
            ),
            id="not started yet",
        ),
    ],
)
def test_a_broken_promise_is_found(fault: str, change: Change) -> None:
    found = verdict(*change(HELD, TOLD))
    assert found.counts[fault] >= 1
    assert not found.ok
    assert set(found.counts) == set(FAULTS)
