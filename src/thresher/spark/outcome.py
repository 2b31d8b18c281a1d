"""How an attempt of a shard ended, as types that survive the trip through Spark.

A task never fails in Spark's eyes while it can still speak: it returns its outcome as its result. So the type decides
what the supervisor does, not the text of a Java stack trace.
"""

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from thresher.core.errors import ThresherError, shorten
from thresher.spark.problem import StepExited

_MESSAGE_LETTERS = 4_000
_TRACE_LETTERS = 32_000
_ERROR_BYTES = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error as the driver can show it, wherever it came from."""

    kind: str
    message: str
    trace: str = ""
    # The error itself, where it is one of ours and could be brought over.
    error: ThresherError | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The source ended and everything was published: there is nothing left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The open batch was finished and no other begun, because somebody asked."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The driver had a newer attempt already; nothing was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """It failed in a way that another attempt may not."""

    trouble: Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """It failed in a way that every attempt will."""

    trouble: Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The task ended without a word: killed, or taken down with its executor. What it did is not known."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Spark itself is not there any more, so no attempt can follow."""

    why: str


Outcome = Finished | Stopped | Replaced | Transient | Fatal | Lost | Gone


def outcome_of(error: BaseException) -> Transient | Fatal:
    """Judge an error by its type: ours say themselves whether trying again can help, others are given the chance."""
    if isinstance(error, SystemExit):
        error = StepExited(f"a function called sys.exit({shorten(error.code)})")
    fatal = isinstance(error, ThresherError) and not error.retryable
    trouble = Trouble(
        kind=type(error).__name__,
        message=_cut(_text(error), _MESSAGE_LETTERS),
        trace=_cut("".join(traceback.format_exception(error)), _TRACE_LETTERS),
        error=error if isinstance(error, ThresherError) else None,
    )
    return Fatal(trouble=trouble) if fatal else Transient(trouble=trouble)


def encode(outcome: Outcome, counts: Mapping[str, int | float] | None = None) -> bytes:
    """Pack an outcome in the task, with what the attempt counted in all.

    An error that cannot be packed, or not be unpacked again, travels as its text.
    """
    error = None
    match outcome:
        case Transient(trouble=trouble) | Fatal(trouble=trouble):
            error = _packed(trouble.error)
            plain = Trouble(kind=trouble.kind, message=trouble.message, trace=trouble.trace)
            outcome = type(outcome)(trouble=plain)
        case _:
            pass
    return pickle.dumps((outcome, error, dict(counts or {})))


def decode(payload: bytes) -> tuple[Outcome, dict[str, int | float]]:
    """Unpack outcome and counts in the driver, which may not have the error's class: then its text has to do."""
    outcome: Outcome
    outcome, error, counts = pickle.loads(payload)  # noqa: S301 - it comes from our own task
    match outcome:
        case Transient(trouble=plain) | Fatal(trouble=plain):
            trouble = Trouble(kind=plain.kind, message=plain.message, trace=plain.trace, error=_unpacked(error))
            return type(outcome)(trouble=trouble), counts
        case _:
            return outcome, counts


def _packed(error: ThresherError | None) -> bytes | None:
    try:
        packed = pickle.dumps(error)
    except Exception:  # noqa: BLE001 - a subclass may hold anything
        return None
    return packed if len(packed) <= _ERROR_BYTES and _unpacked(packed) is not None else None


def _unpacked(packed: bytes | None) -> ThresherError | None:
    try:
        error = pickle.loads(packed) if packed else None  # noqa: S301 - it comes from our own task
    except Exception:  # noqa: BLE001 - its constructor may want other arguments, its module may not be here
        return None
    return error if isinstance(error, ThresherError) else None


def _cut(text: str, letters: int) -> str:
    """Keep both ends of a text: a hundred megabytes of it would take the driver's JVM down."""
    half = letters // 2
    return text if len(text) <= letters else f"{text[:half]} … {len(text) - letters} letters … {text[-half:]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        return "<its text cannot be made>"
