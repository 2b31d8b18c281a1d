"""Handlers in threads, and programs with handlers that get signals. For async handlers see `test_queue_aio_running`."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment, eventually, hears, signal_a_thread
from tests.queue.application_signals import hearing
from thresher.queue import Message, OffsetsLost, Queue, QueueConsumer
from thresher.queue.memory import MemoryQueueService
from thresher.queue.running import Handler

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def queue() -> Iterator[Queue]:
    with MemoryQueueService() as service:
        yield service.queue("orders")


def send(queue: Queue, *payloads: bytes) -> None:
    with queue.producer() as producer:
        for payload in payloads:
            producer.send(payload)


def redelivered(queue: Queue) -> Message | None:
    with queue.consumer() as consumer:
        return consumer.receive(0)


def run(consumer: QueueConsumer, handler: Handler, concurrency: int = 1) -> None:
    """Run a handler until the run ends. The test fails if it does not end."""
    patience = threading.Timer(PATIENCE_SECONDS, consumer.close)
    patience.start()
    try:
        consumer.run(handler, concurrency)
    finally:
        in_time = patience.is_alive()
        patience.cancel()
    assert in_time


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """Return the list of signals that reach the application's own signal handlers."""
    with hearing() as heard:
        yield heard


# Threads


def test_no_more_handlers_run_than_the_limit(queue: Queue) -> None:
    lock = threading.Lock()
    running: list[Message] = []
    most, done = 0, 0
    one_more = threading.Event()

    def handle(message: Message) -> None:
        nonlocal most, done
        with lock:
            running.append(message)
            most = max(most, len(running))
            if most == 4:
                one_more.set()
        # Time in which a surplus handler could start with a waiting message.
        one_more.wait(0.2)
        with lock:
            running.remove(message)
            done += 1

    send(queue, *(b"%d" % number for number in range(7)))
    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        ended = pool.submit(consumer.run, handle, concurrency=3)
        eventually(lambda: done == 7, PATIENCE_SECONDS)
        consumer.close()
        ended.result(PATIENCE_SECONDS)
    assert most == 3


@pytest.mark.parametrize("exits", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_handler_that_exits_ends_the_run(queue: Queue, exits: BaseException) -> None:
    others: list[bytes] = []
    both = threading.Barrier(2)

    def handle(message: Message) -> None:
        both.wait(PATIENCE_SECONDS)
        if message.payload == b"exits":
            raise exits
        others.append(message.payload)

    send(queue, b"exits", b"other")
    consumer = queue.consumer()
    with pytest.raises(type(exits)) as raised:
        run(consumer, handle, concurrency=2)
    assert raised.value is exits
    assert others == [b"other"]
    message = redelivered(queue)
    assert message is not None
    assert (message.payload, message.delivery_count) == (b"exits", 2)


def test_the_error_that_ends_a_consumer_ends_its_run(queue: Queue) -> None:
    done: list[bytes] = []

    def handle(message: Message) -> None:
        consumer._buffer.fail(OffsetsLost("the group has no offsets"))
        done.append(message.payload)

    send(queue, b"x")
    consumer = queue.consumer()
    with pytest.raises(OffsetsLost):
        run(consumer, handle, concurrency=3)
    assert done == [b"x"]


def test_a_consumer_leaves_while_its_handlers_finish(queue: Queue) -> None:
    left = threading.Event()
    seen: list[bool] = []

    def leave(timeout: float) -> None:
        QueueConsumer.leave(consumer, timeout)
        left.set()

    def handle(_: Message) -> None:
        signal.raise_signal(signal.SIGTERM)
        seen.append(left.wait(PATIENCE_SECONDS / 2))
        # Later messages go to other consumers.
        before = consumer.in_progress
        send(queue, b"y")
        seen.append(consumer.in_progress == before)

    send(queue, b"x")
    consumer = queue.consumer()
    consumer.leave = leave  # type: ignore[method-assign, assignment]
    run(consumer, handle)
    assert seen == [True, True]


def test_each_of_two_runs_in_turn_is_stopped(queue: Queue, heard: list[int]) -> None:
    for _ in range(2):
        send(queue, b"x")
        run(queue.consumer(), lambda _: signal.raise_signal(signal.SIGTERM))
    assert heard == []
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


# Programs


@contextmanager
def program(where: str, hang: str) -> Iterator[Any]:
    """Start a program, and yield it once both handlers have messages; one handler suffices if it blocks the loop."""
    command = [sys.executable, "-m", "tests.queue.run_program", where, hang]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for _ in range(1 if hang == "block" else 2):
                assert process.stdout.readline() == "handling\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("where", ["threads", "asyncio"])
def test_a_second_signal_does_not_wait_for_handlers(where: str) -> None:
    with program(where, "wait") as process:
        # Two different signals, because two equal pending signals may become one.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in {128 + signal.SIGTERM, 128 + signal.SIGINT}, errors
    assert out.splitlines() == ["given back 2"] * 2
    assert "handlers are not waited for" in errors


@pytest.mark.parametrize("where", ["threads", "asyncio"])
def test_signals_delivered_to_other_threads_are_handled(where: str) -> None:
    with program(where, "wait") as process:
        signal_a_thread(process.pid, signal.SIGTERM)
        signal_a_thread(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in {128 + signal.SIGTERM, 128 + signal.SIGINT}, errors
    assert out.splitlines() == ["given back 2"] * 2


@pytest.mark.parametrize("hang", ["ignore", "block"])
def test_a_third_signal_ends_an_uncancellable_program(hang: str) -> None:
    with program("asyncio", hang) as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        eventually(lambda: not hears(process.pid, signal.SIGTERM), PATIENCE_SECONDS)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGTERM, errors


FOREIGN = """
import ctypes, signal, sys
library = ctypes.CDLL(None)
library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
# A function of the C library takes the signal, as the handler of a program that embeds Python does.
library.signal(signal.SIGTERM, ctypes.cast(library.abs, ctypes.c_void_p))
# As at the start of Python: it looks which handlers there are.
del sys.modules["signal"], sys.modules["_signal"]
import signal
assert signal.getsignal(signal.SIGTERM) is None

from thresher.queue.memory import MemoryQueueService

with MemoryQueueService() as service:
    queue = service.queue("orders")
    queue.producer().send(b"x")
    consumer = queue.consumer()
    consumer.run(lambda _: (signal.raise_signal(signal.SIGTERM), consumer.leave(), consumer._buffer.close()))
assert signal.getsignal(signal.SIGTERM) is None
print("ended")
"""


def test_a_signal_handler_not_set_by_python_stays() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FOREIGN], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
