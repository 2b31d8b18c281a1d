"""The port through which a workload adds to the pages of its process: to /status and to /metrics.

A page waits for what a report asks. So a report that asks a server gives up after a few seconds and says that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from thresher.observe.metric import Family, Reading
from thresher.observe.tally import Number
from thresher.service.health import Role, ServerHealth
from thresher.service.ledger import Ledger
from thresher.service.servers.reach import Reach
from thresher.spark.driver.snapshot import ShardSnapshot, Snapshot


class Observed(Protocol):
    """A process that is shown, or one leadership of it. Safe from any thread."""

    @property
    def ledger(self) -> Ledger:
        """Its counts."""

    @property
    def role(self) -> Role:
        """Its role at the moment."""

    @property
    def term(self) -> str | None:
        """Under which term it leads, or led last."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """Things that wait, and why."""

    @property
    def waiting_for(self) -> str | None:
        """The reason why it cannot take over yet."""

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what it meets with a server."""

    @property
    def reach(self) -> Reach:
        """Whether the servers that it needs answer."""

    def snapshot(self) -> Snapshot | None:
        """How its shards stand, if it has any."""

    def silent_seconds(self) -> dict[str, float]:
        """For how long each of its threads has owed an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All that the driver knows at one moment, without asking any server."""

    name: str
    role: Role
    ready: bool
    # As /readyz gives it.
    reason: str = ""
    shards: tuple[ShardSnapshot, ...]
    # Over all leaderships: by shard, and the driver's own.
    counts: Mapping[int, Mapping[str, Number]]
    driver: Mapping[str, Number]
    alarms: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, ServerHealth] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPart:
    """The part of a workload in /status: in the page, and in the entry of each shard."""

    page: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


class Report(Protocol):
    """The part of one workload. Safe from any thread.

    A page calls `ask`, and only then takes the moment: what a page shows is of one time, however long the answer took.
    """

    @property
    def families(self) -> tuple[Family, ...]:
        """The metrics that it adds, with the label of its pipeline."""

    @property
    def error_kinds(self) -> tuple[str, ...]:
        """Kinds of errors that are shown as 0 before they happen, so that the first is seen as an increase."""

    def ask(self) -> Any:
        """Return what has to be asked of servers, for `status` and `readings`; waits for a few seconds at most."""

    def status(self, moment: Moment, answer: Any, /) -> StatusPart:
        """Return what it adds to /status."""

    def readings(self, moment: Moment, answer: Any, /) -> Iterator[Reading]:
        """Yield what it adds to /metrics. An unknown figure is left out."""

    def close(self) -> None:
        """End its threads and connections."""
