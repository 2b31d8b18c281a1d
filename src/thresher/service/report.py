"""The port through which a workload adds its part to /status and /metrics.

A page waits for the report. A report that asks a server therefore gives up after a few seconds, and says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from thresher.observe.figure_sink import Number
from thresher.observe.metric import Family, Reading
from thresher.service.health import Role, ServerHealth
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.reach import Reach
from thresher.spark.driver.snapshot import ShardSnapshot, Snapshot


class Observed(Protocol):
    """A service or a leadership, as a report sees it. Safe in any thread."""

    @property
    def process_counts(self) -> ProcessCounts:
        """The counts of the process."""

    @property
    def role(self) -> Role:
        """The present role."""

    @property
    def term(self) -> str | None:
        """The id of the present or the last term, if there is one."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """Things that wait, such as topics, and why."""

    @property
    def waiting_for(self) -> str | None:
        """The reason why this process cannot take over yet."""

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Kind and text of the present problem with a server or a step."""

    @property
    def reach(self) -> Reach:
        """Whether the servers that the process needs answer."""

    def snapshot(self) -> Snapshot | None:
        """The engine's snapshot, if this process has led."""

    def silent_seconds(self) -> dict[str, float]:
        """For how many seconds each thread has been unresponsive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSnapshot:
    """The driver's state at one moment. No server is asked for it."""

    name: str
    role: Role
    ready: bool
    # The reason that /readyz gives.
    reason: str = ""
    shards: tuple[ShardSnapshot, ...]
    # Counts over all leaderships: by shard, and the driver's own.
    counts: Mapping[int, Mapping[str, Number]]
    driver: Mapping[str, Number]
    alarms: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, ServerHealth] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPart:
    """A workload's part of /status: keys of the page, and keys of each shard's entry."""

    page: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


class Report(Protocol):
    """A workload's part of the pages. Safe in any thread.

    A page calls `ask` first and takes the `ServiceSnapshot` afterwards: both belong together, however long `ask` took.
    """

    @property
    def families(self) -> tuple[Family, ...]:
        """The metric families of the workload, with the label of its pipeline."""

    @property
    def error_kinds(self) -> tuple[str, ...]:
        """Kinds of errors that are shown as 0 before they happen, so that the first is seen as an increase."""

    def ask(self) -> Any:
        """Ask the servers, for a few seconds at most, and return the answer for `status` and `readings`."""

    def status(self, snapshot: ServiceSnapshot, answer: Any, /) -> StatusPart:
        """Return the workload's part of /status."""

    def readings(self, snapshot: ServiceSnapshot, answer: Any, /) -> Iterator[Reading]:
        """Yield the workload's part of /metrics. An unknown value is left out."""

    def close(self) -> None:
        """End its threads and connections."""
