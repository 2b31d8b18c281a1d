import sys

import pytest

from thresher.core.errors import ThresherError
from thresher.spark.outcome import (
    Fatal,
    Finished,
    Outcome,
    Replaced,
    SparkLost,
    Stopped,
    TaskLost,
    Transient,
    decode,
    encode,
    outcome_of,
)
from thresher.spark.problem import LineUnreachable, StepExited, WrongBatch


class Odd(ThresherError):
    retryable = True

    def __init__(self, *, wanted: str) -> None:
        super().__init__(wanted)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "outcome", [Finished(), Stopped(why="asked"), Replaced(), TaskLost(why="killed"), SparkLost(why="no JVM")]
)
def test_outcomes_survive_serialization(outcome: Outcome) -> None:
    assert decode(encode(outcome, {"rows": 7})) == (outcome, {"rows": 7})


def travelled(error: BaseException) -> Outcome:
    return decode(encode(outcome_of(error)))[0]


def test_errors_of_thresher_arrive_with_their_type() -> None:
    fatal, transient = travelled(WrongBatch("no")), travelled(LineUnreachable("no"))
    assert isinstance(fatal, Fatal)
    assert isinstance(fatal.error.exception, WrongBatch)
    assert isinstance(transient, Transient)
    assert isinstance(transient.error.exception, LineUnreachable)
    assert str(fatal.error) == "WrongBatch: no"


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "io"), MemoryError(), KeyboardInterrupt()])
def test_foreign_errors_are_retried(error: BaseException) -> None:
    outcome = travelled(error)
    assert isinstance(outcome, Transient)
    assert outcome.error.kind == type(error).__name__
    assert outcome.error.exception is None


def test_an_error_that_cannot_be_unpickled_arrives_as_text() -> None:
    outcome = travelled(Odd(wanted="this"))
    assert isinstance(outcome, Transient)
    assert outcome.error.exception is None
    assert str(outcome.error) == "Odd: this"


def test_an_error_of_an_unknown_class_arrives_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = encode(outcome_of(LineUnreachable("no")))
    monkeypatch.delattr(sys.modules["thresher.spark.problem"], "LineUnreachable")
    outcome, _ = decode(payload)
    assert isinstance(outcome, Transient)
    assert outcome.error.exception is None
    assert str(outcome.error) == "LineUnreachable: no"


def test_exiting_python_is_a_failure_with_its_status() -> None:
    outcome = outcome_of(SystemExit(3))
    assert isinstance(outcome, Transient)
    assert isinstance(outcome.error.exception, StepExited)
    assert "sys.exit(3)" in outcome.error.message


def test_an_error_without_a_text_is_still_reported() -> None:
    assert isinstance(travelled(Mute()), Transient)


def test_an_error_of_any_size_arrives_shortened() -> None:
    outcome = travelled(WrongBatch("x" * 10_000_000))
    assert isinstance(outcome, Fatal)
    assert outcome.error.exception is None
    assert len(encode(outcome)) < 50_000
    assert outcome.error.message.startswith("xxx")
    assert "characters" in outcome.error.message
