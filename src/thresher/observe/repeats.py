"""Limits equal log lines: the first is written at once, the others are counted, and the count is written once a minute.

1. The first line opens a minute. Equal lines within that minute are left out. At its end, the last left-out line is
   written, with its own time and the number of left-out lines. It opens the next minute.
2. Only warnings and worse are left out. A line of a lower level ends all open minutes of its logger: the situation has
   changed, so the next warning is written at once.
3. Two lines of other programs are equal if they differ only in numbers, such as times, process ids and ports.
   Thresher's own lines are equal only if every character is.

This module only decides; `logs` reads the clock and writes.
"""

import itertools
import logging
import re
from dataclasses import dataclass

SECONDS = 60.0
# The most different lines that are counted at a time. Beyond it, the oldest minute ends early.
_MOST = 1000
_NUMBER = re.compile(r"\d+")
# Thresher's loggers with these suffixes pass on lines of Kafka's clients and of Java.
_PASSED_ON = (".client", ".java")

Key = tuple[str, str]


def key_of(record: logging.LogRecord) -> Key:
    """Return the key of a line, which equal lines share: its logger and its text, an exception's included."""
    text = f"{record.levelno} {record.getMessage()}"
    if record.exc_info is not None and record.exc_info[0] is not None:
        text = f"{text} {record.exc_info[0].__name__}: {record.exc_info[1]}"
    ours = record.name.partition(".")[0] == "thresher" and not record.name.endswith(_PASSED_ON)
    return record.name, text if ours else _NUMBER.sub("0", text)


@dataclass(slots=True, kw_only=True)
class _Minute:
    ends_at: float
    # The number of left-out lines, and the last of them.
    count: int = 0
    last: logging.LogRecord | None = None


class Repeats:
    """The open minutes. For one thread at a time."""

    def __init__(self) -> None:
        # Ordered by their ends, because all minutes are equally long.
        self._minutes: dict[Key, _Minute] = {}

    def admit(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """Take a line, and return the lines to write now, with this line unless it is left out."""
        if record.levelno < logging.WARNING:
            return [*self._end([key for key in self._minutes if key[0] == record.name]), record]
        written = self.due(now)
        key = key_of(record)
        if (minute := self._minutes.get(key)) is not None:
            minute.count += 1
            minute.last = record
            return written
        if len(self._minutes) >= _MOST:
            written += self._end([next(iter(self._minutes))])
        self._minutes[key] = _Minute(ends_at=now + SECONDS)
        return [*written, record]

    def due(self, now: float) -> list[logging.LogRecord]:
        """Return the lines to write because their minute is over. Each of them opens another minute."""
        over = [key for key, _ in itertools.takewhile(lambda each: each[1].ends_at <= now, self._minutes.items())]
        written = []
        for key in over:
            counted = self._end([key])
            if counted:
                self._minutes[key] = _Minute(ends_at=now + SECONDS)
            written += counted
        return written

    def end(self) -> list[logging.LogRecord]:
        """End all minutes and return the lines to write, when the log is closed."""
        return self._end(list(self._minutes))

    @property
    def ends_at(self) -> float | None:
        """The end of the first minute in which a line was left out."""
        return next((minute.ends_at for minute in self._minutes.values() if minute.count), None)

    def _end(self, keys: list[Key]) -> list[logging.LogRecord]:
        ended = [self._minutes.pop(key) for key in keys]
        return [_counted(minute.last, minute.count) for minute in ended if minute.last is not None]


def _counted(record: logging.LogRecord, count: int) -> logging.LogRecord:
    # A field of the record, which JSON shows as it is; `logs` appends it to a line of text.
    record.repeated = count
    return record
