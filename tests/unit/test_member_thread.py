"""A consumer's thread starts no more messages than there is room for, and keeps polling its group."""

from typing import Any, cast

from tests.set_clock import SetClock
from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.configuration import configured
from thresher.queue.hand_off.member import BATCH_BYTES, MemberThread
from thresher.queue.hand_off.polled_records import Batch, PolledRecords
from thresher.queue.hand_off.protocol import Outcome, Steps
from thresher.queue.metrics import Figures
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import record_of

MOST_IN_PROGRESS = 3


class Recording:
    """A group member and a writer that record their calls."""

    partition = 0
    epoch = 0
    polled_at = 0.0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.started: list[int] = []
        self.sizes: list[int] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def poll(self, _: float) -> None:
        self.calls.append("poll")

    def steps(self, batch: Batch) -> Steps:
        self.started += [record.message_id.offset for record in batch.records]
        self.sizes.append(sum(record.size for record in batch.records))
        yield from ()
        return Outcome.DELIVERED


class Scene:
    """A member thread that is not started, with ten polled records and `in_progress` messages."""

    def __init__(self, in_progress: int) -> None:
        keys = {"bootstrap-servers": "localhost:1", "message-topic": "m", "marker-topic": "k"}
        config = configured({**keys, "max-in-progress": MOST_IN_PROGRESS})
        self.recording, self.clock, unused = Recording(), SetClock(), cast("Any", None)
        self.thread = MemberThread(
            b"q",
            config,
            unused,
            cast("Any", self.recording),
            unused,
            ReceiveBuffer(),
            cast("Any", range(in_progress)),
            Figures(),
            clock=self.clock,
        )
        self.polled = PolledRecords(most_skipped=100, most_bytes=BATCH_BYTES)
        self.fill(b"")

    def fill(self, payload: bytes) -> None:
        self.polled.forget()
        self.polled.give(0, 0)
        for offset in range(10):
            self.polled.add(record_of(MessageId(0, offset), payload, (), 1))

    def run_once(self) -> None:
        self.thread.run_once(cast("Any", self.recording), self.polled)


def test_started_messages_stay_within_the_limit_in_progress() -> None:
    for in_progress in range(MOST_IN_PROGRESS + 1):
        scene = Scene(in_progress)
        scene.run_once()
        assert scene.recording.started == list(range(MOST_IN_PROGRESS - in_progress))


def test_a_batch_has_8_mb_at_most() -> None:
    scene = Scene(0)
    scene.fill(bytes(3_000_000))
    scene.run_once()
    assert scene.recording.sizes == [6_000_000]


def test_a_full_consumer_pauses_and_polls() -> None:
    scene = Scene(MOST_IN_PROGRESS)
    scene.run_once()
    assert scene.recording.calls == [], "a pause would drop prefetched records"
    scene.clock.now += 1.0
    scene.run_once()
    assert scene.recording.calls == ["pause", "poll"]


def test_a_consumer_with_room_fetches_again() -> None:
    scene = Scene(0)
    scene.polled.cut(9)
    scene.run_once()
    assert scene.recording.calls == ["resume", "poll"]
