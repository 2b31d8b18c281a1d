"""When a take-over is retried, when it is given up, and its log lines."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from thresher.core.errors import PipelineProblem, Trouble
from thresher.db import TableName
from thresher.relay.leader.workload import RelayTerm, RelayWorkload
from thresher.relay.settings import Settings
from thresher.service import take_over
from thresher.service.process_counts import ProcessCounts
from thresher.service.take_over import TakeOver
from thresher.service.workload import Term

SETTINGS = Settings(name="orders", dsn="", outbox=TableName(table="outbox"), kafka={})


class Taken:
    id = "the term"


class Workload(RelayWorkload):
    """A workload whose take-overs have the given outcomes: an error, not wanted (None), or success."""

    def __init__(self, *outcomes: Any) -> None:
        super().__init__(SETTINGS)
        self.terms: list[str] = []
        self._outcomes = list(outcomes)

    def take_over(self, term: str, wanted: Callable[[], bool]) -> RelayTerm | None:
        self.terms.append(term)
        outcome = self._outcomes.pop(0)
        if callable(outcome):
            outcome = outcome(wanted)
        if isinstance(outcome, Exception):
            raise outcome
        return cast("RelayTerm | None", outcome)


def attempt(workload: Workload, asked: threading.Event | None = None) -> tuple[TakeOver, ProcessCounts]:
    process_counts, ids = ProcessCounts(), iter("abc")
    return TakeOver(
        workload,
        process_counts,
        stop_requested=asked or threading.Event(),
        terms=lambda: next(ids),
        wanted=lambda: True,
        draw=lambda: 1.0,
        first_wait_seconds=0.001,
        look_seconds=0.001,
    ), process_counts


def test_trouble_is_tried_again_under_the_same_term(caplog: pytest.LogCaptureFixture) -> None:
    workload = Workload(Trouble("down"), Trouble("down"), Trouble("slow"), None, Taken())
    attempts, process_counts = attempt(workload)
    assert cast("Term", attempts.run()).id == "the term"
    assert workload.terms == ["a"] * 5
    assert process_counts.driver() == {"errors.trouble": 3, "takeovers": 1}
    assert attempts.waiting_for is None
    # One warning for each reason.
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the relay waits to take over: down",
        "the relay waits to take over: slow",
    ]


def test_lasting_trouble_is_logged_again_with_a_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if every attempt took a minute.
    monkeypatch.setattr(take_over, "REPEAT_SECONDS", 0.0)
    attempts, _ = attempt(Workload(Trouble("down"), Trouble("down"), Trouble("down"), Taken()))
    attempts.run()
    first, *again = [record for record in caplog.records if record.levelname == "WARNING"]
    assert first.getMessage() == "the relay waits to take over: down"
    assert [vars(record)["attempts"] for record in again] == [2, 3]
    assert "3 attempts failed: down" in again[-1].getMessage()


def test_a_problem_that_needs_a_person_is_raised() -> None:
    workload = Workload(Trouble("down"), PipelineProblem("no such table"))
    attempts, process_counts = attempt(workload)
    with pytest.raises(PipelineProblem, match="no such table"):
        attempts.run()
    assert process_counts.driver() == {"errors.trouble": 1, "errors.pipeline_problem": 1}


def test_a_stop_does_not_wait_for_a_hanging_attempt() -> None:
    asked, answer, wanted_later = threading.Event(), threading.Event(), []

    def hanging(wanted: Callable[[], bool]) -> None:
        asked.set()
        assert answer.wait(60)
        wanted_later.append(wanted())

    attempts, process_counts = attempt(Workload(hanging), asked)
    assert attempts.run() is None
    assert process_counts.driver() == {}
    (abandoned,) = [each for each in threading.enumerate() if each.name == "take-over"]
    answer.set()
    abandoned.join(60)
    # The attempt supersedes nobody when it finally resumes.
    assert wanted_later == [False]
