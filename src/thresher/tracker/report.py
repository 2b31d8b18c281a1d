"""The tracker's part of the status page: messages in progress, redelivered and dead. Contacts no server."""

from collections.abc import Iterator

from thresher.observe.metric import Reading
from thresher.service.report import Observed, ServiceSnapshot, StatusPart
from thresher.tracker.meter import MALFORMED
from thresher.tracker.metrics import ERROR_KINDS, OWN_FAMILIES, by_queue, readings
from thresher.tracker.settings import TrackerSettings

# The shards' counters and gauges: shown for each shard, and as a sum.
_COUNTS = ("started", "ended", "redelivered", "dead", "malformed", "unknown_ends", "unknown_keep_alives", "displaced")
_GAUGES = ("in_progress", "delayed", "due", "marker_lag")
# Shown only for each shard.
_OF_SHARD = ("oldest_seconds", "clock_seconds", "memory_bytes", "spilled_bytes")


class TrackerReport:
    """The part of one tracker. Safe from any thread."""

    families = OWN_FAMILIES
    error_kinds = ERROR_KINDS

    def __init__(self, settings: TrackerSettings, observed: Observed) -> None:
        self._settings, self._observed = settings, observed

    def ask(self) -> None:
        """Do nothing: there is no server to query."""

    def status(self, snapshot: ServiceSnapshot, answer: None) -> StatusPart:  # noqa: ARG002 - nobody was asked
        """Return the topics, the messages in progress, and the counters."""
        shards = {
            each.shard: {
                **{name: snapshot.counts.get(each.shard, {}).get(name, 0) for name in _COUNTS},
                **{name: each.gauges.get(name) for name in (*_GAUGES, *_OF_SHARD)},
            }
            for each in snapshot.shards
        }
        gauges = [each.gauges for each in snapshot.shards]
        return StatusPart(
            page={
                "message_topic": self._settings.message_topic,
                "marker_topic": self._settings.marker_topic,
                **{name: sum(counts.get(name, 0) for counts in snapshot.counts.values()) for name in _COUNTS},
                **{name: sum(each.get(name, 0) for each in gauges) for name in _GAUGES},
                "oldest_in_progress_seconds": max((each.get("oldest_seconds", 0.0) for each in gauges), default=0.0),
                "queues": by_queue(snapshot),
                "malformed_markers": [text for each in snapshot.shards for text in each.notes.get(MALFORMED, ())],
            },
            shards=shards,
        )

    def readings(self, snapshot: ServiceSnapshot, answer: None) -> Iterator[Reading]:  # noqa: ARG002 - nobody was asked
        """Yield the tracker's own metrics."""
        return readings(snapshot)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
