"""A relay's process as seen from outside."""

from dataclasses import dataclass, field

from tests.service.scraping import Samples, Scraper, counters, shown
from thresher.relay.leader.shard_marks import ShardMarks
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.report.status import RelayReport
from thresher.relay.settings import Settings
from thresher.service.health import Role
from thresher.service.process_counts import ProcessCounts
from thresher.service.report import Observed
from thresher.service.servers.reach import Reach
from thresher.spark.driver.snapshot import Snapshot

__all__ = ["Process", "Samples", "Scraper", "counters", "shown"]


class ImpatientWorkload(RelayWorkload):
    """A relay whose pages wait for a silent database for the given time."""

    def __init__(self, settings: Settings, patience_seconds: float) -> None:
        super().__init__(settings)
        self._patience_seconds = patience_seconds

    def report(self, observed: Observed) -> RelayReport:
        marks = ShardMarks(self.settings.name)
        return RelayReport(self.settings, observed, marks, patience_seconds=self._patience_seconds)


@dataclass
class Process:
    """Stands for a process."""

    settings: Settings
    patience_seconds: float | None = None
    role: Role = Role.STANDBY
    term: str | None = None
    alarms: dict[str, str] = field(default_factory=dict)
    waiting_for: str | None = None
    trouble: tuple[str, str] | None = None
    process_counts: ProcessCounts = field(default_factory=ProcessCounts)
    reach: Reach = field(default_factory=lambda: Reach(()))

    def __post_init__(self) -> None:
        self.reach.election = lambda: None

    @property
    def workload(self) -> RelayWorkload:
        if self.patience_seconds is None:
            return RelayWorkload(self.settings)
        return ImpatientWorkload(self.settings, self.patience_seconds)

    def snapshot(self) -> Snapshot | None:
        return None

    def silent_seconds(self) -> dict[str, float]:
        return {}
