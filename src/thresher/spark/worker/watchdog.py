"""A watchdog timer in the kernel, which kills this process unless it is reset in time.

The timer ends a process in which no Python code can run, because a C function keeps the interpreter's lock. It sends
SIGKILL, which no library can catch or block, unlike SIGALRM. A forked child does not inherit the timer.
"""

import ctypes
import os
import signal

_CLOCK_MONOTONIC = 1
_SIGEV_SIGNAL = 0


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", ctypes.c_long * 2), ("value", ctypes.c_long * 2))


class WatchdogTimer:
    """The timer. It runs from the first `reset` until the process ends."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        # Before glibc 2.34 the timer functions were in librt.
        self._library = libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Sigevent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        self._call("timer_create", _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))

    def reset(self, seconds: float) -> None:
        """Let the kernel kill the process `seconds` from now, unless the timer is reset again."""
        whole = int(seconds)
        value = _Itimerspec(value=(whole, int((seconds - whole) * 1e9)))
        self._call("timer_settime", self._timer, 0, ctypes.byref(value), None)

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
