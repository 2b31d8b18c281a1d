import sys

import pytest

from thresher.core.errors import ThresherError
from thresher.spark.outcome import (
    Fatal,
    Finished,
    Gone,
    Lost,
    Outcome,
    Replaced,
    Stopped,
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
    "outcome", [Finished(), Stopped(why="asked"), Replaced(), Lost(why="killed"), Gone(why="no JVM")]
)
def test_outcomes_survive_the_trip(outcome: Outcome) -> None:
    assert decode(encode(outcome, {"rows": 7})) == (outcome, {"rows": 7})


def travelled(error: BaseException) -> Outcome:
    return decode(encode(outcome_of(error)))[0]


def test_errors_of_ours_say_whether_a_retry_helps_and_arrive_as_themselves() -> None:
    fatal, transient = travelled(WrongBatch("no")), travelled(LineUnreachable("no"))
    assert isinstance(fatal, Fatal)
    assert isinstance(fatal.trouble.error, WrongBatch)
    assert isinstance(transient, Transient)
    assert isinstance(transient.trouble.error, LineUnreachable)
    assert str(fatal.trouble) == "WrongBatch: no"


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "io"), MemoryError(), KeyboardInterrupt()])
def test_errors_of_others_are_given_another_chance(error: BaseException) -> None:
    outcome = travelled(error)
    assert isinstance(outcome, Transient)
    assert outcome.trouble.kind == type(error).__name__
    assert outcome.trouble.error is None


def test_an_error_that_cannot_be_built_again_arrives_as_its_text() -> None:
    outcome = travelled(Odd(wanted="this"))
    assert isinstance(outcome, Transient)
    assert outcome.trouble.error is None
    assert str(outcome.trouble) == "Odd: this"


def test_an_error_whose_class_the_driver_lacks_arrives_as_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = encode(outcome_of(LineUnreachable("no")))
    monkeypatch.delattr(sys.modules["thresher.spark.problem"], "LineUnreachable")
    outcome, _ = decode(payload)
    assert isinstance(outcome, Transient)
    assert outcome.trouble.error is None
    assert str(outcome.trouble) == "LineUnreachable: no"


def test_exiting_python_is_a_failure_with_its_status() -> None:
    outcome = outcome_of(SystemExit(3))
    assert isinstance(outcome, Transient)
    assert isinstance(outcome.trouble.error, StepExited)
    assert "sys.exit(3)" in outcome.trouble.message


def test_an_error_without_a_text_is_still_told() -> None:
    assert isinstance(travelled(Mute()), Transient)


def test_an_error_of_any_size_arrives_as_one_of_a_bearable_size() -> None:
    outcome = travelled(WrongBatch("x" * 10_000_000))
    assert isinstance(outcome, Fatal)
    assert outcome.trouble.error is None
    assert len(encode(outcome)) < 50_000
    assert outcome.trouble.message.startswith("xxx")
    assert "letters" in outcome.trouble.message
