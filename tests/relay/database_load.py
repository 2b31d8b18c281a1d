"""Rows and writers for a relay whose database fails, and checks of what readers got."""

from pathlib import Path
from typing import Any

from tests.relay.load import Load, judged
from tests.relay.relaying import Place, Relaying
from thresher.outbox import Message

# Seen: 3 s from the return of the database to that of the relay; 12 s on a busy machine.
BACK_SECONDS = 65.0


def rows(topic: str, numbers: range) -> list[Message]:
    """Return messages with rising numbers in a few keys."""
    return [Message(topic=topic, key=f"k{n % 20}", value=str(n)) for n in numbers]


def once_in_order(at: Place, count: int, *topics: str) -> list[int]:
    """Read exactly `count` records, and check that numbers rise within each key; return all numbers, sorted."""
    found = at.read(count, *topics, seconds=BACK_SECONDS)
    for key in {message.key() for message in found}:
        numbers = [int(message.value() or 0) for message in found if message.key() == key]
        assert numbers == sorted(numbers)
    return sorted(int(message.value() or 0) for message in found)


def writers(at: Place, directory: Path, **changes: Any) -> Load:
    """Return a load whose writers share keys and roll some transactions back, until the end of the block."""
    return Load(at, directory, **{"keys": 30, "rate": 300.0, "patience_seconds": 60.0, **changes})


def require_good(at: Place, *loads: Load) -> str:
    """Compare the records that were read with the rows that were written; return the verdict, or fail."""
    verdict = judged(at, [load.history for load in loads])
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert verdict.committed > 200
    assert verdict.rolled_back > 10
    return f"{verdict.line()} of {verdict.committed} rows"


def moves(at: Place, relaying: Relaying, seconds: float = BACK_SECONDS) -> None:
    """Wait until rows are there, and then until these rows are gone."""
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
