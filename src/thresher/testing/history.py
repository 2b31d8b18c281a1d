"""The history of a load: what writers did to the outbox, for a checker to hold against what was read from Kafka.

JSON lines. The first names the run; then two lines for each transaction:

    {"event": "run", "format": "thresher-history", "version": 2, "run": "5f3a", "topic": "t", "clock": "monotonic-ns",
     "epoch": 179…}
    {"event": "begin", "run": "5f3a", "writer": 0, "transaction": 7, "at": 812…, "topic": "t",
     "rows": [[140, "key-3", "9c1f…"], [141, null, null, {"partition": 0}]]}
    {"event": "end", "run": "5f3a", "writer": 0, "transaction": 7, "at": 815…, "outcome": "committed"}

`begin` is written before the first row is inserted and `end` after the database answered, both by a single append, so a
writer killed at any moment leaves at most a transaction without an end: its outcome is unknown, never guessed. `at` is
the machine's monotonic clock in nanoseconds, the same for all processes until a reboot; with `epoch` it is the time
since 1970. A row is its number within the writer, counted over all transactions, its key, the digest of its value, and
what else it says: a topic other than the transaction's, the digest of its headers, its own partition and timestamp. It
carries the identity `run.writer.number` in the header `pump-id`. Outcomes: committed, rolled_back, unknown.

Version 1 has no `epoch` and no contents: its rows are numbers and keys. It is still read.
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
    """What became of a transaction, as far as the writer can know."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a row says besides its key and its identity.

    `value` and `headers` are digests; None is a tombstone, and "" no header besides the identity. `partition` and
    `timestamp` (milliseconds since 1970) are None where the row leaves them to the relay.
    """

    topic: str
    value: str | None
    headers: str = ""
    partition: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction of the history; `end` is None where the writer did not live to see it.

    `contents` has one for each row, or none where the history has none. `epoch` turns times into those since 1970.
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
    """Return what the header of a row says."""
    return f"{run}.{writer}.{number}"


def run_of(name: str) -> str | None:
    """Return the run that an identity names; None for what is no identity."""
    found = _IDENTITY.fullmatch(name)
    return None if found is None else found[1]


class HistoryWriter:
    """Appends to a history; several processes may append to the same one."""

    def __init__(self, path: Path, run: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._run = run

    def open_run(self, topic: str, *, epoch: int | None = None) -> None:
        """Name the run; once, before its writers begin. What an earlier run left torn is closed off first.

        `epoch` is what the monotonic clock has to be added to for the time since 1970.
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
        """Note what is about to be inserted: the number and key of each row, and its content."""
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
        """Note what became of it."""
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
        """Let go of the file."""
        os.close(self._file)

    def _append(self, line: dict[str, object]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError("the history could not be written whole: is the disk full?")


def read_history(path: Path) -> list[Transaction]:
    """Return the transactions in the order of their begin lines; raises `InvalidInput` with the line that is wrong."""
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
    """Return the topics that the runs of a history name, each once, in their order; raises as `read_history` does."""
    topics: dict[str, None] = {}

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "run":
            topics[str(event["topic"])] = None

    _each_event(path, take)
    return list(topics)


def _each_event(path: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Hand over the whole lines in their order; what is wrong with one, here or there, is told with its number."""
    lines = path.read_bytes().split(b"\n")
    del lines[-1]  # empty, or torn by a crash: the transaction it belongs to stays unknown
    for number, line in enumerate(lines, start=1):
        if lines[number : number + 1] == [b'{"event":"torn"}']:
            continue  # a later run found it torn and went on behind it
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
    """Yield what a row says besides its key and value, if anything."""
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
