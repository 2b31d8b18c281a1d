"""The history of a load: what writers did to the outbox. A checker compares it with what was read from Kafka.

The format is JSON lines. The first line names the run; two lines follow for each transaction:

    {"event": "run", "format": "thresher-history", "version": 2, "run": "5f3a", "topic": "t", "clock": "monotonic-ns",
     "epoch": 179…}
    {"event": "begin", "run": "5f3a", "writer": 0, "transaction": 7, "at": 812…, "topic": "t",
     "rows": [[140, "key-3", "9c1f…"], [141, null, null, {"partition": 0}]]}
    {"event": "end", "run": "5f3a", "writer": 0, "transaction": 7, "at": 815…, "outcome": "committed"}

`begin` is written before the first row is inserted, and `end` after the database's answer, each by a single append. So
a writer that is killed leaves at most a transaction without an end, whose outcome is unknown. `at` is the machine's
monotonic clock in nanoseconds, the same for all processes until a reboot; `at` + `epoch` is the time since 1970. A row
has its number within the writer, counted over all transactions, its key, and the digest of its value. If needed, it
also has its own topic, the digest of its headers, its partition and its timestamp. The record carries the identity
`run.writer.number` in the header `pump-id`. Outcomes: committed, rolled_back, unknown.

Version 1 has no `epoch` and no contents: its rows are numbers and keys. It can still be read.
"""

import enum
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thresher.core.errors import InvalidInput

FORMAT = "thresher-history"
VERSION = 2
IDENTITY_HEADER = "pump-id"
_READABLE = (1, VERSION)
_IDENTITY = re.compile(r"([^.\s]+)\.[0-9]+\.[0-9]+")
_EVENTS = ("run", "begin", "end", "torn")


class Outcome(enum.Enum):
    """The outcome of a transaction, as far as the writer can know."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a row, without its key and its identity.

    `value` and `headers` are digests. A value of None is a tombstone; headers of "" mean none besides the identity.
    `partition` and `timestamp` (milliseconds since 1970) are None if the row does not set them.
    """

    topic: str
    value: str | None
    headers: str = ""
    partition: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction of the history. `end` is None if the writer was killed before it.

    `contents` has one item for each row, or none at all in a history without contents. `epoch` plus a time of the
    transaction is the time since 1970.
    """

    run: str
    writer: int
    number: int
    begin: int
    end: int | None
    outcome: Outcome
    rows: tuple[tuple[int, str | None], ...]
    contents: tuple[Content, ...] = ()
    epoch: int | None = None

    def identities(self) -> Iterator[str]:
        """Yield the identities of its rows, in the order of their inserts."""
        return (identity(self.run, self.writer, number) for number, _ in self.rows)


def identity(run: str, writer: int, number: int) -> str:
    """Return the identity of a row, for its header."""
    return f"{run}.{writer}.{number}"


def run_of(name: str) -> str | None:
    """Return the run of an identity; None if the text is not an identity."""
    found = _IDENTITY.fullmatch(name)
    return None if found is None else found[1]


class HistoryWriter:
    """Appends to a history. Several processes may append to the same file."""

    def __init__(self, path: Path, run: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._run = run

    def open_run(self, topic: str, *, epoch: int | None = None) -> None:
        """Write the line of the run: once, before its writers begin. First mark a torn last line of an earlier run.

        `epoch` plus the monotonic clock is the time since 1970.
        """
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b'\n{"event":"torn"}\n')
        self._append(
            {
                "event": "run",
                "format": FORMAT,
                "version": VERSION,
                "run": self._run,
                "topic": topic,
                "clock": "monotonic-ns",
                "epoch": epoch,
            }
        )

    def begin(
        self,
        writer: int,
        transaction: int,
        at: int,
        rows: Sequence[tuple[int, str | None]],
        contents: Sequence[Content] = (),
    ) -> None:
        """Record the rows that are about to be inserted: number, key and content of each."""
        topic = contents[0].topic if contents else None
        self._append(
            {
                "event": "begin",
                "run": self._run,
                "writer": writer,
                "transaction": transaction,
                "at": at,
                "topic": topic,
                "rows": [
                    (*row, content.value, *_more(content, topic)) for row, content in zip(rows, contents, strict=True)
                ]
                if contents
                else rows,
            }
        )

    def end(self, writer: int, transaction: int, at: int, outcome: Outcome) -> None:
        """Record the outcome of a transaction."""
        self._append(
            {
                "event": "end",
                "run": self._run,
                "writer": writer,
                "transaction": transaction,
                "at": at,
                "outcome": outcome.value,
            }
        )

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, line: dict[str, object]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError("a line of the history could not be written completely: is the disk full?")


def read_history(path: Path) -> list[Transaction]:
    """Return the transactions in the order of their begin lines. Raises `InvalidInput`, which names a bad line."""
    transactions: dict[tuple[str, int, int], Transaction] = {}
    epochs: dict[str, int | None] = {}

    def take(event: dict[str, Any]) -> None:
        match event["event"]:
            case "run":
                epochs[str(event["run"])] = event.get("epoch")
            case "begin":
                transactions[_place(event)] = replace(_begun(event), epoch=epochs.get(str(event["run"])))
            case "end":
                transaction = transactions[_place(event)]
                transactions[_place(event)] = replace(
                    transaction, end=int(event["at"]), outcome=Outcome(event["outcome"])
                )

    _each_event(path, take)
    return list(transactions.values())


def topics_of(path: Path) -> list[str]:
    """Return the topics of a history's runs, each once, in order. Raises `InvalidInput`, as `read_history` does."""
    topics: dict[str, None] = {}

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "run":
            topics[str(event["topic"])] = None

    _each_event(path, take)
    return list(topics)


def _each_event(path: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Pass each complete line to `take`, in order. Raises `InvalidInput`, with the line's number, if one is wrong."""
    lines = path.read_bytes().split(b"\n")
    del lines[-1]  # empty, or torn by a crash: the outcome of its transaction stays unknown
    for number, line in enumerate(lines, start=1):
        if lines[number : number + 1] == [b'{"event":"torn"}']:
            continue  # a later run has marked this line as torn
        try:
            event = json.loads(line)
            kind = event["event"]
            if kind == "run" and (event["format"] != FORMAT or event["version"] not in _READABLE):
                raise ValueError("another format or version")  # noqa: TRY301
            if kind not in _EVENTS:
                raise ValueError(f"unknown event {kind!r}")  # noqa: TRY301
            take(event)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path}, line {number}: not a line of a history: {error!r}") from error


def _place(event: dict[str, Any]) -> tuple[str, int, int]:
    return str(event["run"]), int(event["writer"]), int(event["transaction"])


def _begun(event: dict[str, Any]) -> Transaction:
    run, writer, number = _place(event)
    contents = tuple(_content(event["topic"], *more) for _, _, *more in event["rows"] if more)
    if contents and len(contents) < len(event["rows"]):
        raise ValueError("some rows have no content")
    return Transaction(
        run=run,
        writer=writer,
        number=number,
        begin=int(event["at"]),
        end=None,
        outcome=Outcome.UNKNOWN,
        rows=tuple((int(row), None if key is None else str(key)) for row, key, *_ in event["rows"]),
        contents=contents,
    )


def _more(content: Content, topic: str | None) -> Iterator[dict[str, object]]:
    """Yield the content of a row besides its key and value, if there is any."""
    more: dict[str, object] = {} if content.topic == topic else {"topic": content.topic}
    if content.headers:
        more["headers"] = content.headers
    if content.partition is not None:
        more["partition"] = content.partition
    if content.timestamp is not None:
        more["timestamp"] = content.timestamp
    if more:
        yield more


def _content(topic: str, value: str | None, more: dict[str, Any] | None = None) -> Content:
    return Content(**{"topic": topic, "value": value, **(more or {})})
