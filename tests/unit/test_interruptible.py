"""Signals that the kernel delivers to another thread while the main thread waits."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.processes import PYTHON_PATH, environment, eventually, signal_a_thread, state_of
from thresher.core.interruptible import interruptible

PATIENCE_SECONDS = 60.0
ENDED = 7
PROGRAM = """
import asyncio, os, signal, subprocess, sys, threading, time
from thresher.core.interruptible import interruptible

def end(*_):
    raise SystemExit(7)

def forked():
    # It holds the pipe: the end of the wait must not depend on it.
    if (child := os.fork()) == 0:
        threading.Event().wait(60)
    try:
        threading.Event().wait()
    finally:
        os.kill(child, 9)

async def loop():
    await asyncio.Event().wait()

WAITS = {
    "event": lambda: threading.Event().wait(),
    "join": lambda: idle.join(),
    "sleep": lambda: time.sleep(3600),
    "read": lambda: os.read(0, 1),
    "process": lambda: subprocess.run(["sleep", "60"]),
    "asyncio": lambda: asyncio.run(loop()),
    "nested": lambda: nested(),
    "forked": forked,
}

def nested():
    with interruptible():
        pass
    threading.Event().wait()

idle = threading.Thread(target=lambda: threading.Event().wait(), daemon=True)
idle.start()
signal.signal(signal.SIGTERM, end)
with interruptible():
    print("waiting", flush=True)
    WAITS[sys.argv[1]]()
"""


@contextmanager
def waiting(where: str) -> "Iterator[subprocess.Popen[str]]":
    """Yield a program whose main thread waits."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=PYTHON_PATH),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            eventually(lambda: all(state_of(process.pid) == "S" for _ in range(5)), PATIENCE_SECONDS)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("where", ["event", "join", "sleep", "read", "process", "asyncio", "nested", "forked"])
def test_a_signal_to_another_thread_ends_the_main_threads_wait(where: str) -> None:
    with waiting(where) as process:
        signal_a_thread(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == ENDED


def test_previous_signal_handling_is_restored() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(writer)
    heard: list[int] = []
    handlers = {kind: signal.signal(kind, lambda number, _: heard.append(number)) for kind in (signal.SIGTERM,)}
    handlers[signal.SIGURG] = signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
    try:
        with interruptible():
            signal.raise_signal(signal.SIGTERM)
            eventually(lambda: signal.SIGTERM in _read(reader), PATIENCE_SECONDS)
        signal.raise_signal(signal.SIGURG)
        assert heard == [signal.SIGTERM, signal.SIGURG]
        assert signal.set_wakeup_fd(writer) == writer
    finally:
        signal.set_wakeup_fd(before)
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
        os.close(reader)
        os.close(writer)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 64)
    except BlockingIOError:
        return b""


def test_a_descriptor_set_meanwhile_stays() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(-1)
    try:
        with interruptible():
            signal.set_wakeup_fd(writer)
        assert signal.set_wakeup_fd(-1) == writer
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def test_other_threads_change_nothing() -> None:
    found: list[object] = []

    def elsewhere() -> None:
        with interruptible():
            found.append(signal.getsignal(signal.SIGURG))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGURG)]
