"""What a `receive` gets, and when it ends."""

import threading
import traceback
from typing import cast

import pytest

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.message import Message
from thresher.queue.problem import OffsetsLost, QueueClosed

ONE, TWO = cast("Message", "one"), cast("Message", "two")


def test_what_was_put_before_the_end_is_taken_and_then_nothing_is_waited_for() -> None:
    buffer = ReceiveBuffer()
    buffer.put([ONE])
    buffer.end()
    assert buffer.take(1, None) == [ONE]
    with pytest.raises(QueueClosed, match="left its group"):
        buffer.take(1, None)


def test_the_end_wakes_whoever_waits() -> None:
    buffer = ReceiveBuffer()
    ended = threading.Event()

    def take() -> None:
        with pytest.raises(QueueClosed):
            buffer.take(1, None)
        ended.set()

    threading.Thread(target=take, daemon=True).start()
    buffer.end()
    assert ended.wait(30)


def test_an_error_that_every_take_raises_does_not_grow() -> None:
    buffer = ReceiveBuffer()
    buffer.fail(OffsetsLost("gone"))
    buffer.end()
    lengths = set()
    for _ in range(3):
        with pytest.raises(OffsetsLost) as caught:
            buffer.take(1, None)
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


def test_messages_that_may_not_be_had_any_more_are_passed_over() -> None:
    buffer = ReceiveBuffer()
    buffer.put([ONE, TWO])
    assert buffer.take(1, None, lambda found: [each for each in found if each is not ONE]) == [TWO]
    buffer.put([ONE])
    assert buffer.take(1, 0.01, lambda _: []) == []
