"""The effect of SIGTERM and SIGINT on several concurrent runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.queue.application_signals import hearing
from thresher.core import signals
from thresher.queue.memory import MemoryQueueService

TERM, INTERRUPT = signal.SIGTERM, signal.SIGINT


class Run:
    """A run that records its calls."""

    def __init__(self) -> None:
        self.told: list[str | int] = []

    def stop(self) -> None:
        self.told.append("stop")

    def abandon(self, status: int) -> None:
        self.told.append(status)


def stopped_by_signals(run: Run) -> AbstractContextManager[None]:
    return signals.stopped_by_signals(run.stop, run.abandon)


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """Return the list of signals that reach the application's own signal handlers."""
    with hearing() as heard:
        yield heard


@pytest.mark.parametrize("kind", [TERM, INTERRUPT])
def test_a_signal_stops_every_run_and_none_afterwards(heard: list[int], kind: signal.Signals) -> None:
    first, second = Run(), Run()
    with stopped_by_signals(first), stopped_by_signals(second):
        signal.raise_signal(kind)
    assert (first.told, second.told, heard) == (["stop"], ["stop"], [])
    signal.raise_signal(kind)
    assert (first.told, second.told, heard) == (["stop"], ["stop"], [kind])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_runs_may_end_in_any_order(heard: list[int], order: tuple[int, ...]) -> None:
    runs = [Run() for _ in order]
    ends = [ExitStack() for _ in order]
    for run, end in zip(runs, ends, strict=True):
        end.enter_context(stopped_by_signals(run))
    for number in order[:-1]:
        ends[number].close()
    signal.raise_signal(TERM)
    assert [run.told for run in runs] == [["stop"] if number == order[-1] else [] for number in range(3)]
    ends[order[-1]].close()
    assert heard == []
    signal.raise_signal(TERM)
    assert heard == [TERM]


def test_a_run_within_another_is_stopped_with_it(heard: list[int]) -> None:
    outer = Run()
    with MemoryQueueService() as service, stopped_by_signals(outer):
        queue = service.queue("orders")
        queue.producer().send(b"x")
        queue.consumer().run(lambda _: signal.raise_signal(TERM))
        assert outer.told == ["stop"]
    assert heard == []


def test_the_second_signal_abandons_and_the_third_is_the_applications(heard: list[int]) -> None:
    first, second = Run(), Run()
    with stopped_by_signals(first), stopped_by_signals(second):
        for _ in range(3):
            signal.raise_signal(TERM)
    assert first.told == second.told == ["stop", 128 + TERM]
    assert heard == [TERM]


def test_a_run_that_began_after_a_signal_is_stopped_first(heard: list[int]) -> None:
    first, second = Run(), Run()
    with stopped_by_signals(first):
        signal.raise_signal(TERM)
        with stopped_by_signals(second):
            signal.raise_signal(INTERRUPT)
            assert (first.told, second.told) == (["stop", 128 + INTERRUPT], ["stop"])
            signal.raise_signal(TERM)
            assert second.told == ["stop", 128 + TERM]
    assert heard == []


def test_a_handler_installed_meanwhile_is_left_in_place(heard: list[int]) -> None:
    own: list[int] = []
    with stopped_by_signals(Run()):
        signal.signal(TERM, lambda number, _: own.append(number))
    signal.raise_signal(TERM)
    assert (own, heard) == ([TERM], [])


def test_runs_of_other_threads_touch_no_signal(heard: list[int]) -> None:
    run, installed = Run(), threading.Event()

    def elsewhere() -> None:
        with stopped_by_signals(run):
            installed.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert installed.is_set()
    signal.raise_signal(TERM)
    assert (run.told, heard) == ([], [TERM])


def test_a_run_without_abandon_passes_on_the_second_signal(heard: list[int]) -> None:
    run, other = Run(), Run()
    with signals.stopped_by_signals(run.stop):
        signal.raise_signal(TERM)
        with stopped_by_signals(other):
            # The newest run comes first.
            signal.raise_signal(TERM)
            assert (run.told, other.told, heard) == (["stop"], ["stop"], [])
            signal.raise_signal(TERM)
    assert (run.told, other.told, heard) == (["stop"], ["stop", 128 + TERM], [TERM])
