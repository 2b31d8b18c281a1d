"""The buffer of a consumer: a waiting `take` ends with messages, with an error, or with the end."""

import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.problem import OffsetsLost, QueueClosed

# Only a failing test waits so long.
PATIENCE_SECONDS = 10.0
MESSAGES: list[Any] = ["one", "two", "three"]


class Waiting(ReceiveBuffer):
    """Signals that a `take` has begun to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Future[None] = Future()
        wait = self._changed.wait

        def told(seconds: float | None = None) -> bool:
            if not self.waits.done():
                self.waits.set_result(None)
            # A waiter that is never woken fails the test.
            return wait(PATIENCE_SECONDS if seconds is None else seconds) or self._give_up()

        self._changed.wait = told  # type: ignore[method-assign,assignment]
        self.waits_for_room: Future[None] = Future()
        clear = self._room.clear

        def cleared() -> None:
            clear()
            self.waits_for_room.set_result(None)

        self._room.clear = cleared  # type: ignore[method-assign]

    def _give_up(self) -> bool:
        raise AssertionError("the waiting thread was not woken")


@pytest.fixture
def buffer() -> Waiting:
    return Waiting()


def taken(buffer: Waiting, pool: ThreadPoolExecutor) -> "Future[list[Any]]":
    """Begin a `take` in a thread, and return once it waits."""
    found = pool.submit(buffer.take, 2, None)
    buffer.waits.result(PATIENCE_SECONDS)
    return cast("Future[list[Any]]", found)


def test_a_close_ends_a_take_that_waits(buffer: Waiting) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = taken(buffer, pool)
        buffer.close()
        with pytest.raises(QueueClosed):
            waiting.result(2 * PATIENCE_SECONDS)


def test_an_error_ends_a_take_that_waits(buffer: Waiting) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = taken(buffer, pool)
        buffer.fail(OffsetsLost("gone"))
        with pytest.raises(OffsetsLost):
            waiting.result(2 * PATIENCE_SECONDS)


def test_messages_end_a_take_that_waits(buffer: Waiting) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = taken(buffer, pool)
        buffer.put(MESSAGES)
        assert waiting.result(2 * PATIENCE_SECONDS) == MESSAGES[:2]
    assert len(buffer) == 1


def test_messages_started_before_an_error_are_delivered(buffer: Waiting) -> None:
    buffer.put(MESSAGES)
    buffer.fail(OffsetsLost("gone"))
    assert buffer.take(5, 0.0) == MESSAGES
    with pytest.raises(OffsetsLost):
        buffer.take(5, 0.0)


def test_a_closed_buffer_gives_nothing_out(buffer: Waiting) -> None:
    buffer.put(MESSAGES)
    buffer.close()
    with pytest.raises(QueueClosed):
        buffer.take(5, 0.0)
    assert len(buffer) == 3


def test_messages_before_the_end_are_taken_then_takes_raise(buffer: Waiting) -> None:
    buffer.put(MESSAGES[:1])
    buffer.end()
    assert buffer.take(1, None) == MESSAGES[:1]
    with pytest.raises(QueueClosed, match="left its group"):
        buffer.take(1, None)


def test_the_end_ends_a_take_that_waits(buffer: Waiting) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = taken(buffer, pool)
        buffer.end()
        with pytest.raises(QueueClosed, match="left its group"):
            waiting.result(2 * PATIENCE_SECONDS)


def test_an_error_that_every_take_raises_does_not_grow(buffer: Waiting) -> None:
    buffer.fail(OffsetsLost("gone"))
    buffer.end()
    lengths = set()
    for _ in range(3):
        with pytest.raises(OffsetsLost) as caught:
            buffer.take(1, None)
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


def test_undeliverable_messages_are_skipped_by_takes(buffer: Waiting) -> None:
    buffer.put(MESSAGES[:2])
    assert buffer.take(1, None, lambda found: [each for each in found if each is MESSAGES[1]]) == MESSAGES[1:2]
    buffer.put(MESSAGES[:1])
    assert buffer.take(1, 0.0, lambda _: []) == []


@pytest.mark.parametrize("ends", ["a take makes room", "it is closed"])
def test_a_thread_waiting_for_room_is_woken(buffer: Waiting, ends: str) -> None:
    buffer.put(MESSAGES)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffer.await_room, 1, PATIENCE_SECONDS)
        buffer.waits_for_room.result(PATIENCE_SECONDS)
        if ends == "it is closed":
            buffer.close()
        else:
            buffer.take(1, 0.0)
            assert not buffer._room.is_set()
            buffer.take(1, 0.0)
        assert waiting.result(2 * PATIENCE_SECONDS)


def test_a_wait_for_existing_room_returns_at_once(buffer: Waiting) -> None:
    assert buffer.await_room(0, PATIENCE_SECONDS)
    assert not buffer.waits_for_room.done()
