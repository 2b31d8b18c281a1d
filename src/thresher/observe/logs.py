"""The log: lines of text for people, or one JSON object per line for machines. Equal lines are counted, see `repeats`.

The first keys of a JSON object are fixed: `ts` (RFC 3339, UTC), `level`, `logger`, `message` and `event`. `event` is
the message without its values, so that it is the same for all lines of a kind. After these come the fields of the log
call, `repeated` if equal lines were left out, and `exception` (`type`, `message`, `stack`) if there is one.
"""

import contextlib
import enum
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from thresher.core.printable import one_line, printable, printable_json
from thresher.observe.repeats import Repeats

_PACKAGE = "thresher"
_TEXT = "%(asctime)s %(levelname)-7s %(message)s"
# Fields that every record has. All others come from the `extra` of the log call.
_PLAIN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_FIXED = ("ts", "level", "logger", "message", "event", "exception")


class LogFormat(enum.StrEnum):
    """The format of the log: text for people, JSON for machines."""

    TEXT = "text"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, even if a field holds line breaks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object without a line break."""
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "event": str(record.msg),
        }
        for name, value in vars(record).items():
            if name not in _PLAIN:
                line[f"{name}_" if name in _FIXED else name] = _plain(value)
        if record.exc_info is not None and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            line["exception"] = {
                "type": kind.__name__,
                "message": str(error),
                "stack": self.formatException(record.exc_info),
            }
        if record.stack_info:
            line["stack"] = record.stack_info
        return printable_json(json.dumps(line, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text, followed by its traceback, of which every line is indented.

    A text of others in the message or in an error therefore begins no line of the log.
    """

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if there is one."""
        line, *traceback = super().format(record).split("\n")
        return "\n".join([line, *(f"  {printable(each)}" for each in traceback)])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that `logging` calls
        """Return the line, with the number of equal lines that were left out."""
        line = one_line(super().formatMessage(record))
        count = getattr(record, "repeated", 0)
        return f"{line} ({count:,} like it within a minute)" if count else line


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream, and leaves out equal lines as `Repeats` decides. `close` writes the pending counts."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._repeats, self._clock = Repeats(), clock
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it."""
        try:
            self._write(self._repeats.admit(record, self._clock()))
            self._set_timer()
        except Exception:  # noqa: BLE001 - as all handlers of `logging` do: a faulty log call must not raise
            self.handleError(record)

    def say_due(self) -> None:
        """Write the counted lines whose minute is over."""
        self.acquire()
        try:
            self._timer = None
            self._write(self._repeats.due(self._clock()))
            self._set_timer()
        finally:
            self.release()

    def close(self) -> None:
        """Write the counted lines, and close."""
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
            self._write(self._repeats.end())
        finally:
            self.release()
        super().close()

    def _write(self, records: Iterable[logging.LogRecord]) -> None:
        for record in records:
            super().emit(record)

    def _set_timer(self) -> None:
        if self._timer is None and (ends_at := self._repeats.ends_at) is not None:
            self._timer = threading.Timer(max(0.0, ends_at - self._clock()), self.say_due)
            self._timer.daemon = True
            self._timer.start()


def _plain(value: object) -> object:
    """Return a field as it is if JSON can hold it, otherwise as text: no field may cost the whole line."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


def _number(level: int | str) -> int | str:
    if not isinstance(level, str):
        return level
    return logging.CRITICAL + 1 if level == "off" else level.upper()


def configure_logging(
    format: LogFormat | str = LogFormat.TEXT,  # noqa: A002 - as the configuration's key
    level: int | str = logging.INFO,
    stream: TextIO | None = None,
) -> logging.Handler:
    """Send the log to a stream, stderr if none is given, and return the handler.

    `level` is for Thresher's own lines; of other libraries, warnings and worse are shown. Replaces earlier handlers.
    """
    handler = CountingHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if LogFormat(format) is LogFormat.JSON else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # Warnings of Python itself become lines of the log too.
    logging.captureWarnings(True)
    logging.getLogger(_PACKAGE).setLevel(_number(level))
    return handler


@contextlib.contextmanager
def forwarded_to(logger: logging.Logger | None) -> Iterator[None]:
    """Within the block, only the caller's logger handles Thresher's log records. Without a logger, nothing changes."""
    if logger is None:
        yield
        return
    forward = _Forward(logger)
    with _forwarding:
        ours = logging.getLogger(_PACKAGE)
        if not _forwards:
            _before.level, _before.propagate = ours.level, ours.propagate
        _forwards.append(forward)
        ours.addHandler(forward)
        ours.propagate = False
        if ours.level == logging.NOTSET:
            ours.setLevel(logger.getEffectiveLevel())
    try:
        yield
    finally:
        # Blocks of several threads may end in any order: the last one restores what the first one found.
        with _forwarding:
            ours.removeHandler(forward)
            _forwards.remove(forward)
            if not _forwards:
                ours.setLevel(_before.level)
                ours.propagate = _before.propagate


class _Before:
    """The package's logger as it was before its records were forwarded."""

    level, propagate = logging.NOTSET, True


_forwarding = threading.Lock()
_forwards: list[logging.Handler] = []
_before = _Before()


class _Forward(logging.Handler):
    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if self._logger.isEnabledFor(record.levelno):
            self._logger.handle(record)
