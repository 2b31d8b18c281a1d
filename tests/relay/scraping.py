"""A relay's process as seen from outside."""

from dataclasses import dataclass, field

from tests.service.scraping import Samples, Scraper, counters, shown
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.settings import Settings
from thresher.service.health import Role
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.reach import Reach
from thresher.spark.driver.snapshot import Snapshot

__all__ = ["Process", "Samples", "Scraper", "counters", "shown"]


@dataclass
class Process:
    """Stands for a process."""

    settings: Settings
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
        return RelayWorkload(self.settings)

    def snapshot(self) -> Snapshot | None:
        return None

    def silent_seconds(self) -> dict[str, float]:
        return {}
