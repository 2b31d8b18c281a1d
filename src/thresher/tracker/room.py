"""The memory and the disk of a shard: where it keeps the contents of Starts, its alarms, and its end at the limit.

A content that finds no room in memory goes to a temporary file of this process. A message without its content takes
memory too. Above 75 % of `memory_mb` there is an alarm; above 90 % the shard ends, before the system ends it.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from thresher.core.errors import PipelineProblem
from thresher.core.spill import Spill
from thresher.observe.figure_sink import Number
from thresher.tracker.settings import TrackerSettings

# The event with the shard's alarms, by subject.
ALARMS = "alarms"
_LOOK_SECONDS, _ALARM_SECONDS = 0.2, 2.0
# The shares of the memory limit at which there is an alarm, and at which the shard ends.
_PRESSED, _FULL = 0.75, 0.9
# The share of the disk limit at which there is an alarm.
_DISK_PRESSED = 0.5


class MemoryFull(PipelineProblem):
    """The messages in progress do not fit in memory. A restart would read them all again, and end the same way."""


class RoomSink(Protocol):
    """The receiver of figures and alarms: a shard."""

    def gauge(self, name: str, value: Number) -> None:
        """Set a gauge."""

    def event(self, name: str, **fields: Any) -> None:
        """Report an event."""


class Room:
    """The room of one attempt at one shard. For one thread."""

    def __init__(
        self,
        sink: RoomSink,
        settings: TrackerSettings,
        *,
        directory: str | None = None,
        statm: Callable[[], str] = lambda: Path("/proc/self/statm").read_text(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """The temporary file is in `directory`, or in the system's directory for temporary files."""
        self._sink, self._settings, self._statm, self._monotonic = sink, settings, statm, monotonic
        self._spill = Spill(settings.disk_bytes, directory)
        self.contents = settings.contents(self._spill)
        self._look_due = self._alarm_due = 0.0
        # A new attempt has no alarm: the driver learns that too.
        self._told: Mapping[str, str] | None = None

    def close(self) -> None:
        """Give the temporary file back."""
        self._spill.close()

    def look(self, count: Callable[[], int]) -> None:
        """Report what is taken, if a report is due. Raises `MemoryFull`. `count` returns the messages in progress."""
        now, most = self._monotonic(), self._settings.memory_bytes
        if now < self._look_due:
            return
        self._look_due = now + _LOOK_SECONDS
        is_alarm_due = now >= self._alarm_due
        used = resident_bytes(self._statm, most_unused=int((_PRESSED if is_alarm_due else _FULL) * most))
        self._sink.gauge("memory_bytes", used)
        self._sink.gauge("spilled_bytes", self._spill.bytes_on_disk)
        if used > _FULL * most:
            raise MemoryFull(
                f"this shard has {count():,} messages in progress in {used >> 20} MB, and {_RAISE.format(most >> 20)}"
                + ("" if self.contents.refusal is None else f". Contents fill the memory: {self.contents.refusal}")
            )
        if is_alarm_due:
            self._alarm_due = now + _ALARM_SECONDS
            self._tell(dict(self._alarms(used)))

    def _alarms(self, used: int) -> Mapping[str, str]:
        found, most = {}, self._settings.memory_bytes
        if used > _PRESSED * most:
            found["memory"] = (
                f"more than {_PRESSED:.0%} is taken by messages in progress; at {_FULL:.0%} the tracker ends, and "
                + _RAISE.format(most >> 20)
            )
        if self.contents.refusal is not None:
            found["disk"] = f"contents of messages in progress stay in memory: {self.contents.refusal}"
        elif self._spill.bytes_taken > _DISK_PRESSED * self._settings.disk_bytes:
            found["disk"] = (
                f"contents of messages in progress take more than {_DISK_PRESSED:.0%} of "
                f"{self._settings.disk_bytes >> 20} MB on disk; beyond that they fill the memory, and "
                + _RAISE.format(most >> 20)
            )
        return found

    def _tell(self, alarms: Mapping[str, str]) -> None:
        if alarms != self._told:
            self._told = alarms
            self._sink.event(ALARMS, alarms=alarms)


_RAISE = (
    "redelivery-tracker.memory_mb is {}: raise it, or raise redelivery-tracker.shards and the partitions of the "
    "marker topic"
)


def local_directory() -> str | None:
    """Return the directory that Spark gives its workers for temporary files, if it does."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


def resident_bytes(statm: Callable[[], str], *, most_unused: int | None = None) -> int:
    """Return the resident memory of this process. Above `most_unused`, freed memory is returned to the system first."""
    used = int(statm().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if most_unused is None or used <= most_unused:
        return used
    # A few huge records that were read and are gone must not end the tracker. Only glibc keeps what is freed.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes(statm)
