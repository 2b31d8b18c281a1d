"""A record as capture reads it, and what becomes of one that cannot be applied."""

from dataclasses import dataclass
from typing import NamedTuple

from thresher.kafka.record_headers import RecordHeaders

# A topic and one of its partitions.
Place = tuple[str, int]


# A tuple and no dataclass: one is made for each record that is read.
class CapturedRecord(NamedTuple):
    """One committed record of a captured topic. A handler and a decoder get it as it is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """The reason why a record cannot be applied. `kind` is one of a few, for metrics."""

    kind: str
    reason: str

    @classmethod
    def of(cls, kind: str, error: BaseException, before: str = "") -> "Flaw":
        """Return the flaw that somebody's exception tells of. Never raises, whatever its `__str__` does."""
        try:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        except Exception:  # noqa: BLE001 - somebody's __str__
            text = type(error).__name__
        return cls(kind=kind, reason=f"{before}{text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlawedRecord:
    """A record that cannot be applied, and why."""

    record: CapturedRecord
    flaw: Flaw


# The kinds of flaws.
MALFORMED, NO_KEY, TYPE, CONSTRAINT, HANDLER = "malformed", "no_key", "type", "constraint", "handler"
KINDS = (MALFORMED, NO_KEY, TYPE, CONSTRAINT, HANDLER)
