"""Rows and writers for a relay whose database is shaken, and what has to become of them."""

from pathlib import Path
from typing import Any

from tests.relay.load import Load, judged
from tests.relay.relaying import Place, Relaying
from thresher.outbox import Message

# Seen: 3 s until a relay is back after its database is; 12 s on a machine with much else to do.
BACK_SECONDS = 65.0


def rows(topic: str, numbers: range) -> list[Message]:
    """Return messages with rising numbers in a few keys."""
    return [Message(topic=topic, key=f"k{n % 20}", value=str(n)) for n in numbers]


def once_in_order(at: Place, count: int, *topics: str) -> list[int]:
    """Read so many records and no more, and see that numbers rise within each key; return all numbers, sorted."""
    found = at.read(count, *topics, seconds=BACK_SECONDS)
    for key in {message.key() for message in found}:
        numbers = [int(message.value() or 0) for message in found if message.key() == key]
        assert numbers == sorted(numbers)
    return sorted(int(message.value() or 0) for message in found)


def writers(at: Place, directory: Path, **changes: Any) -> Load:
    """Return writers that share keys and roll some transactions back, until the end of the block."""
    return Load(at, directory, **{"keys": 30, "rate": 300.0, "patience_seconds": 60.0, **changes})


def require_good(at: Place, *loads: Load) -> str:
    """Hold what was read against what was written; return the verdict, which is good."""
    verdict = judged(at, [load.history for load in loads])
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert verdict.committed > 200
    assert verdict.rolled_back > 10
    return f"{verdict.line()} of {verdict.committed} rows"


def moves(at: Place, relaying: Relaying, seconds: float = BACK_SECONDS) -> None:
    """Wait until there are rows, and these are gone."""
    newest: list[int] = []

    def there() -> bool:
        newest[:] = [
            id_ for (id_,) in at.sql("SELECT max(id) FROM outbox WHERE dispatched_time IS NULL") if id_ is not None
        ]
        return bool(newest)

    relaying.until(there, seconds)
    relaying.until(
        lambda: at.sql("SELECT count(*) FROM outbox WHERE id <= %s AND dispatched_time IS NULL", newest[0]) == [(0,)],
        seconds,
    )
