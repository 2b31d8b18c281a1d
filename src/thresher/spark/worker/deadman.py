"""A timer of the kernel's that kills this process unless it is put off in time.

For a process in which no Python code runs any more: a C function keeps the interpreter's lock. SIGKILL cannot be
caught, blocked or taken by a library that wants SIGALRM for itself. A forked child does not inherit it.
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


class DeadMan:
    """The timer. It runs from the first `put_off` on, until the process ends."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        # Before glibc 2.34 they lived in a library of their own.
        self._library = libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Sigevent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        self._call("timer_create", _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))

    def put_off(self, seconds: float) -> None:
        """Let it go off so much later than now."""
        whole = int(seconds)
        value = _Itimerspec(value=(whole, int((seconds - whole) * 1e9)))
        self._call("timer_settime", self._timer, 0, ctypes.byref(value), None)

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
