"""What a function of the chain may know and ask: which shard it serves, whether to stop, and where its figures go."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from thresher.spark.bell import Bell

T = TypeVar("T")
Number = int | float


@dataclass(slots=True)
class Figures:
    """What a pipeline counts, as the driver will see it at the next beat."""

    counts: dict[str, Number] = field(default_factory=dict)
    gauges: dict[str, Number] = field(default_factory=dict)


class Shard:
    """One attempt at one shard, as its functions see it. Used from the task's main thread only."""

    def __init__(
        self,
        *,
        pipeline: str,
        index: int,
        shards: int,
        attempt: int,
        bell: Bell,
        figures: Figures,
        resources: ExitStack,
        on_event: Callable[[str, dict[str, Any]], None] = lambda _name, _fields: None,
    ) -> None:
        self.pipeline = pipeline
        self.index = index
        self.shards = shards
        # Counted by the driver from 1. An older attempt may still breathe: nothing may rest on there being one.
        self.attempt = attempt
        self.counts = figures.counts
        self.gauges = figures.gauges
        # What functions of one attempt share with each other, such as a reader with its publisher.
        self.shared: dict[str, Any] = {}
        self._bell = bell
        self._resources = resources
        self._on_event = on_event

    @property
    def stopping(self) -> bool:
        """Whether to finish the open batch and begin no other. The engine itself asks for no further batch."""
        return self._bell.rung

    def wait(self, seconds: float) -> bool:
        """Sleep between two looks for work; wakes at once when it is time to stop, and returns whether it is."""
        return self._bell.wait(seconds)

    def enter(self, resource: AbstractContextManager[T]) -> T:
        """Enter a context manager that is left when the attempt ends, after all functions were closed."""
        return self._resources.enter_context(resource)

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure that only grows; the driver sums it over attempts."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def gauge(self, name: str, value: Number) -> None:
        """Set a figure that goes up and down; it ends with the attempt."""
        self.gauges[name] = value

    def event(self, name: str, **fields: Any) -> None:
        """Tell the driver that something happened. Fields are what JSON can carry."""
        self._on_event(name, fields)
