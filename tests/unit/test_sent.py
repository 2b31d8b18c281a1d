"""A send's future behaves like any other, although it creates its condition only for callers that wait."""

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message

from thresher.queue.message import MessageId
from thresher.queue.problem import SendRefused, SendUnknown
from thresher.queue.sending.sent import Sent


class Record:
    """The client's report of a record, by default of one that the broker has."""

    def __init__(self, *, partition: int | None = 3, seconds: float = 0.01) -> None:
        self._partition, self._seconds = partition, seconds

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int:
        return 7

    def latency(self) -> float:
        return self._seconds


RECORD = cast("Message", Record())
SENT = MessageId(3, 7)
TOO_LARGE, TIMED_OUT = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError._MSG_TIMED_OUT)


class Sender:
    """Records the answers."""

    def __init__(self) -> None:
        self.errors: list[KafkaError | None] = []

    def answered(self, sent: Sent, error: KafkaError | None, sent_at: float) -> None:  # noqa: ARG002
        self.errors.append(error)


def new(callback: Any = None) -> Sent:
    return Sent(Sender(), callback)


def test_the_answer_is_the_result() -> None:
    sent = new()
    assert not sent.done()
    sent(None, RECORD)
    assert sent.done()
    assert (sent.result(0), sent.exception(0)) == (SENT, None)


@pytest.mark.parametrize("waits", [True, False], ids=["waited for", "not waited for"])
@pytest.mark.parametrize(("error", "kind"), [(TOO_LARGE, SendRefused), (TIMED_OUT, SendUnknown)])
def test_an_error_is_raised(error: KafkaError, kind: type[Exception], waits: bool) -> None:
    sent = new()
    if waits:
        sent.add_done_callback(lambda _: None)
    sent(error, RECORD)
    with pytest.raises(kind):
        sent.result(0)
    assert isinstance(sent.exception(0), kind)


def test_a_late_refusal_is_unknown() -> None:
    """The client sends a record again after 0.8 s at the earliest. Without a partition, it cannot have sent it."""
    found = {}
    for partition, seconds in ((3, 0.7), (3, 0.8), (None, 5.0)):
        sent = new()
        sent(TOO_LARGE, cast("Message", Record(partition=partition, seconds=seconds)))
        found[partition, seconds] = type(sent.exception(0))
    assert found == {(3, 0.7): SendRefused, (3, 0.8): SendUnknown, (None, 5.0): SendRefused}


def test_a_wait_for_a_missing_result_times_out() -> None:
    with pytest.raises(TimeoutError):
        new().result(0.01)


def test_a_send_cannot_be_cancelled() -> None:
    sent = new()
    assert not sent.cancel()
    sent(None, RECORD)
    assert sent.result(0) == SENT


def test_a_waiting_thread_gets_the_answer() -> None:
    # Many times, because the answer may come at any moment while the wait begins.
    for _ in range(500):
        sent = new()
        found: list[MessageId] = []
        waiting = threading.Thread(target=lambda sent=sent, found=found: found.append(sent.result(30)))
        waiting.start()
        sent(None, RECORD)
        waiting.join(30)
        assert found == [SENT]


def test_callbacks_are_called_once_before_or_after_the_answer() -> None:
    called: list[str] = []
    sent = new(lambda _: called.append("given with the send"))
    sent.add_done_callback(lambda _: called.append("before"))
    sent(None, RECORD)
    sent.add_done_callback(lambda _: called.append("after"))
    assert sorted(called) == ["after", "before", "given with the send"]


def test_a_callback_finds_the_result() -> None:
    found: list[object] = []
    new(lambda sent: found.append(sent.result(0)))(None, RECORD)
    assert found == [SENT]


def test_a_failing_callback_disturbs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    sender = Sender()

    def fail(_: Sent) -> None:
        raise ValueError("broken")

    Sent(sender, fail)(None, RECORD)
    assert sender.errors == [None]
    assert "the callback of a send failed" in caplog.text


def test_the_futures_tools_accept_a_send() -> None:
    first, second = new(), new()
    timer = threading.Timer(0.01, lambda: first(None, RECORD))
    timer.start()
    done, left = wait([first, second], 30, FIRST_COMPLETED)
    assert (done, left) == ({first}, {second})
    second(None, RECORD)
    both: list[Future[MessageId]] = [first, second]
    assert set(as_completed(both, 30)) == {first, second}
    timer.join()


def test_asyncio_accepts_a_send() -> None:
    async def go() -> MessageId:
        sent = new()
        threading.Timer(0.01, lambda: sent(None, RECORD)).start()
        return await asyncio.wait_for(asyncio.wrap_future(sent), 30)

    assert asyncio.run(go()) == SENT
