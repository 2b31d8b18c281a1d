"""Makes every signal interrupt the main thread's waits, whichever thread the kernel delivers the signal to.

Python runs signal handlers in the main thread, as soon as a system call of that thread returns. A signal that is
delivered to another thread does not make the call return, so that the main thread could wait for ever.

1. In whichever thread a signal arrives, Python writes its number to a pipe, the signal wake-up descriptor.
2. A thread reads the pipe and sends SIGURG to the main thread. Its system call returns, and the handlers run.
3. The thread repeats SIGURG until its handler has run, because a wait may begin just after a signal arrived.

SIGURG is harmless: a process that has no handler for it ignores it.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_WAKE_UP = signal.SIGURG
_AGAIN_SECONDS = 0.05
# Ends the thread; no signal has this number. The end of the pipe may never come: a forked child may hold it open.
_END = 0
# The id of the process whose main thread is within `interruptible`. A forked child has another id.
_within: int | None = None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let every signal interrupt the main thread's waits within the block. Does nothing in other threads, or nested.

    Signal numbers are passed on to an earlier wake-up descriptor. An earlier handler of SIGURG is restored at the end.
    If it was not installed from Python, Python could not restore it, and the block changes nothing.
    """
    global _within  # noqa: PLW0603 - a process has one main thread and one wake-up descriptor
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or _within == os.getpid() or signal.getsignal(_WAKE_UP) is None:
        yield
        return
    before = _within
    try:
        _within = os.getpid()
        with _Waker():
            yield
    finally:
        _within = before


class _Waker:
    """The pipe and the thread that reads it. Entered and left by the main thread."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident or 0
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._writer, False)
        # The wake-up descriptor that was set before.
        self._descriptor = -1
        self._over, self._noticed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="signal-waker", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        self._handler = signal.signal(_WAKE_UP, self._notice)
        self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def __exit__(self, *_: object) -> None:
        # An event loop may have set a descriptor of its own within the block: it stays.
        if (now := signal.set_wakeup_fd(self._descriptor)) != self._writer:
            signal.set_wakeup_fd(now)
        self._over.set()
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, bytes([_END]))
        os.close(self._writer)
        self._thread.join()
        signal.signal(_WAKE_UP, self._handler)

    def _notice(self, _number: int, _frame: FrameType | None) -> None:
        self._noticed = True

    def _run(self) -> None:
        with open(self._reader, "rb", buffering=0) as pipe:  # noqa: PTH123 - a descriptor
            while numbers := pipe.read(64):
                if signals := bytes(set(numbers) - {_WAKE_UP, _END}):
                    self._pass_on(signals)
                    self._wake()
                if _END in numbers:
                    return

    def _pass_on(self, signals: bytes) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, signals)

    def _wake(self) -> None:
        self._noticed = False
        while not self._noticed and not self._over.is_set():
            signal.pthread_kill(self._main, _WAKE_UP)
            self._over.wait(_AGAIN_SECONDS)
