"""A shard as the functions of the chain see it: its number, whether to stop, its resources and its figures.

Figures are counts and gauges, which heartbeats carry to the driver.
"""

import json
import math
import numbers
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from thresher.core.errors import shorten
from thresher.observe.figure_sink import Number
from thresher.spark.problem import FigureInvalid
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.running_steps import RunningStep, RunningSteps

T = TypeVar("T")
_LONGEST_NAME = 200
_MOST_FIGURES = 500
_MOST_BYTES = 1 << 16


@dataclass(slots=True)
class Figures:
    """The counts, gauges and notes that the next heartbeat carries to the driver."""

    counts: dict[str, Number] = field(default_factory=dict)
    gauges: dict[str, Number] = field(default_factory=dict)
    # Called at each heartbeat.
    notes: dict[str, Callable[[], list[str]]] = field(default_factory=dict)

    def current_notes(self) -> dict[str, list[str]]:
        """Return the notes' present texts, without notes of more than 64 KiB. For the line's thread."""
        told = {name: tell() for name, tell in self.notes.copy().items()}
        return {name: texts for name, texts in told.items() if len(json.dumps(texts)) <= _MOST_BYTES}


class Shard:
    """An attempt at a shard, as its functions see it. For the task's main thread; other threads may report figures."""

    def __init__(
        self,
        *,
        pipeline: str,
        index: int,
        shards: int,
        attempt: int,
        stop_requested: SignalSafeEvent,
        figures: Figures,
        resources: ExitStack,
        on_event: Callable[[str, dict[str, Any]], None] = lambda _name, _fields: None,
        steps: RunningSteps | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.index = index
        self.shards = shards
        # Numbered by the driver from 1. An older attempt may still run: no function may rely on being the only one.
        self.attempt = attempt
        self._figures = figures
        self._shared: dict[type, Any] = {}
        self._stop_requested = stop_requested
        self._resources = resources
        self._on_event = on_event
        self._steps = steps or RunningSteps()

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested: finish the open batch. The engine asks the source for no further batch."""
        return self._stop_requested.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep between two polls for work. Returns at once on a stop, and returns whether a stop was requested."""
        return self._stop_requested.wait(seconds)

    def enter(self, resource: AbstractContextManager[T]) -> T:
        """Enter a context manager that is left when the attempt ends, after all functions were closed."""
        return self._resources.enter_context(resource)

    def share(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """Return the one object of this type that the functions of this attempt share. The first call makes it."""
        if kind not in self._shared:
            self._shared[kind] = (make or kind)()
        found: T = self._shared[kind]
        return found

    def step(self, name: str) -> RunningStep:
        """Return a context manager around a named step, for one thread at a time. The driver learns how long it runs.

        Do not wrap a wait for rows or for another step: it would look like a step that hangs.
        """
        return self._steps.step(name)

    @property
    def counts(self) -> Mapping[str, Number]:
        """The counts of this attempt so far."""
        return MappingProxyType(self._figures.counts)

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure that only grows; the driver sums it over attempts. Raises `FigureInvalid`."""
        counts = self._figures.counts
        counts[name] = counts[name] + plain(name, amount) if name in counts else _first(counts, name, amount)

    def gauge(self, name: str, value: Number) -> None:
        """Set a figure that goes up and down; it ends with the attempt. Raises `FigureInvalid`."""
        gauges = self._figures.gauges
        gauges[name] = plain(name, value) if name in gauges else _first(gauges, name, value)

    def note(self, name: str, tell: Callable[[], list[str]]) -> None:
        """Attach the texts that `tell` returns to each heartbeat. `tell` is called in another thread."""
        _require_name(name)
        self._figures.notes[name] = tell

    def event(self, name: str, **fields: Any) -> None:
        """Report an event to the driver. Fields are JSON values, 64 KiB in all at most. Raises `FigureInvalid`."""
        try:
            text = json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise FigureInvalid(f"the event {shorten(name)} cannot be reported: {shorten(str(error))}") from error
        _require_name(name)
        if len(text) > _MOST_BYTES:
            raise FigureInvalid(f"the event {shorten(name)} cannot be reported: {len(text)} bytes are too many")
        # A copy, because the caller may change the fields before they are sent.
        self._on_event(name, json.loads(text))


def plain(name: str, value: object) -> Number:
    """Return a plain finite number, or raise `FigureInvalid`; numpy's numbers are numbers too."""
    kind = type(value)
    number: Number
    if kind is int or kind is float:
        number = value  # type: ignore[assignment]
    elif isinstance(value, numbers.Integral):
        number = int(value)
    elif isinstance(value, numbers.Real):
        number = float(value)
    else:
        raise FigureInvalid(f"the figure {shorten(name)} cannot be {shorten(value)}, a {kind.__name__}: give a number")
    if not math.isfinite(number):
        raise FigureInvalid(f"the figure {shorten(name)} cannot be {number}: give a finite number")
    return number


def _require_name(name: object) -> None:
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise FigureInvalid(f"{shorten(name)} cannot be a name: give a text of up to {_LONGEST_NAME} characters")


def _first(figures: dict[str, Number], name: str, value: object) -> Number:
    """Check the value, and the name too, which is checked at its first use only."""
    _require_name(name)
    if len(figures) >= _MOST_FIGURES:
        raise FigureInvalid(f"{shorten(name)} is one figure too many: {_MOST_FIGURES} can be reported")
    return plain(name, value)
