"""A capture's part of the status page: captured records, dead records and lag. It queries no server."""

from collections.abc import Iterator

from thresher.capture.report.metrics import ERROR_KINDS, OWN_FAMILIES, counted, lag_of, readings
from thresher.capture.settings import CaptureSettings
from thresher.observe.metric import Reading
from thresher.service.report import Observed, ServiceSnapshot, StatusPart


class CaptureReport:
    """The report of one capture. Safe from any thread."""

    families = OWN_FAMILIES
    error_kinds = ERROR_KINDS

    def __init__(self, settings: CaptureSettings, observed: Observed) -> None:
        self._settings, self._observed = settings, observed

    def ask(self) -> None:
        """Query nothing."""

    def status(self, snapshot: ServiceSnapshot, answer: None) -> StatusPart:  # noqa: ARG002 - nothing was queried
        """Return the topics, and how far each is captured."""
        topics = {
            topic: {
                "captured": counted(snapshot, "captured", topic),
                "dead": counted(snapshot, "dead", topic),
                "lag": lag_of(snapshot, topic),
            }
            for topic in self._settings.topics
        }
        shards = {
            each.shard: {
                **{name: snapshot.counts.get(each.shard, {}).get(name, 0) for name in ("captured", "dead")},
                "lag": each.gauges.get("lag"),
            }
            for each in snapshot.shards
        }
        totals = {
            name: sum(counts.get(name, 0) for counts in snapshot.counts.values()) for name in ("captured", "dead")
        }
        lag = sum(each.gauges.get("lag", 0) for each in snapshot.shards)
        return StatusPart(page={**totals, "lag": lag, "topics": topics}, shards=shards)

    def readings(self, snapshot: ServiceSnapshot, answer: None) -> Iterator[Reading]:  # noqa: ARG002 - nothing was queried
        """Yield a capture's own metrics."""
        return readings(snapshot, self._settings.topics)

    def close(self) -> None:
        """Nothing to close."""
