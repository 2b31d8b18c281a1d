"""A record as capture reads it, and the flaw of a record that cannot be applied."""

from dataclasses import dataclass
from typing import NamedTuple

from thresher.kafka.record_headers import RecordHeaders

# A topic and one of its partitions.
Place = tuple[str, int]


# A tuple rather than a dataclass, for speed: one is made for each record that is read.
class CapturedRecord(NamedTuple):
    """One committed record of a captured topic. Handlers and decoders get this class."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """The reason why a record cannot be applied. `kind` is one of `KINDS`, for metrics."""

    kind: str
    reason: str

    @classmethod
    def of(cls, kind: str, error: BaseException, before: str = "") -> "Flaw":
        """Return the flaw of an exception of user code. Never raises, even if the exception's `__str__` does."""
        try:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        except Exception:  # noqa: BLE001 - the __str__ of user code may raise anything
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
