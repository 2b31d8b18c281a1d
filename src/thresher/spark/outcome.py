"""How an attempt of a shard ended, as types that survive the trip through Spark.

A task that can still run code never fails as a Spark task: it returns its outcome as its result. The supervisor
therefore decides by the outcome's type, not by the text of a Java stack trace.
"""

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from thresher.core.errors import ThresherError, shorten
from thresher.spark.problem import StepExited

_MESSAGE_CHARACTERS = 4_000
_TRACE_CHARACTERS = 32_000
_ERROR_BYTES = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An error as the driver can show it, also where the driver lacks the error's class."""

    kind: str
    message: str
    trace: str = ""
    # The error itself, if it is a `ThresherError` and could be pickled.
    exception: ThresherError | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The source ended and every batch was published. Nothing is left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The task was told to stop: it finished the open batch and began no other."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The driver already had a newer task. This one read nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """The attempt failed, and another attempt may succeed."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The attempt failed, and every further attempt would fail too."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLost:
    """The task ended without an outcome: its process or its executor died. Its last effects are unknown."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLost:
    """Spark itself is gone: no further attempt is possible."""

    why: str


Outcome = Finished | Stopped | Replaced | Transient | Fatal | TaskLost | SparkLost


def outcome_of(error: BaseException) -> Transient | Fatal:
    """Classify an error by its type. A `ThresherError` says whether a retry helps; any other error is retried."""
    if isinstance(error, SystemExit):
        error = StepExited(f"a function called sys.exit({shorten(error.code)})")
    fatal = isinstance(error, ThresherError) and not error.retryable
    info = ErrorInfo(
        kind=type(error).__name__,
        message=_cut(_text(error), _MESSAGE_CHARACTERS),
        trace=_cut("".join(traceback.format_exception(error)), _TRACE_CHARACTERS),
        exception=error if isinstance(error, ThresherError) else None,
    )
    return Fatal(error=info) if fatal else Transient(error=info)


def encode(outcome: Outcome, counts: Mapping[str, int | float] | None = None) -> bytes:
    """Pickle an outcome in the task, with the attempt's final counts.

    An error that cannot be pickled, or cannot be unpickled again, travels as its text.
    """
    exception = None
    match outcome:
        case Transient(error=info) | Fatal(error=info):
            exception = _pickled(info.exception)
            plain = ErrorInfo(kind=info.kind, message=info.message, trace=info.trace)
            outcome = type(outcome)(error=plain)
        case _:
            pass
    return pickle.dumps((outcome, exception, dict(counts or {})))


def decode(payload: bytes) -> tuple[Outcome, dict[str, int | float]]:
    """Unpickle outcome and counts in the driver. An error whose class the driver lacks arrives as its text."""
    outcome: Outcome
    outcome, exception, counts = pickle.loads(payload)  # noqa: S301 - it comes from our own task
    match outcome:
        case Transient(error=plain) | Fatal(error=plain):
            info = ErrorInfo(kind=plain.kind, message=plain.message, trace=plain.trace, exception=_unpickled(exception))
            return type(outcome)(error=info), counts
        case _:
            return outcome, counts


def _pickled(error: ThresherError | None) -> bytes | None:
    try:
        pickled = pickle.dumps(error)
    except Exception:  # noqa: BLE001 - a subclass may hold anything
        return None
    return pickled if len(pickled) <= _ERROR_BYTES and _unpickled(pickled) is not None else None


def _unpickled(pickled: bytes | None) -> ThresherError | None:
    try:
        error = pickle.loads(pickled) if pickled else None  # noqa: S301 - it comes from our own task
    except Exception:  # noqa: BLE001 - its constructor may want other arguments, its module may be missing
        return None
    return error if isinstance(error, ThresherError) else None


def _cut(text: str, most: int) -> str:
    """Keep both ends of a long text: a message of 100 MB would take the driver's JVM down."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {len(text) - most} characters … {text[-half:]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        return "<its __str__ raises an error>"
