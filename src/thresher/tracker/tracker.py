"""The tracker's public class: a service whose workload tracks the markers of a pair of topics.

See `thresher.service.service` for its life cycle. It fences nothing before it has acquired leadership.
"""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from thresher.election.election import competitor
from thresher.election.settings import ElectionKind
from thresher.queue.configuration import QueueConfig
from thresher.service.service import Service
from thresher.tracker.configuration import TrackerConfiguration, tracker_configured
from thresher.tracker.workload import TrackerWorkload


class Tracker(Service):
    """One candidate for the leadership of one pair of topics. A context manager: entering starts, leaving stops.

    Safe from any thread. `config` is a client's configuration, with the tracker's own keys in `redelivery_tracker`. A
    `logger` gets everything that Thresher logs. `hook` is for tests: see `thresher.delivery.crash_points`.
    """

    _noun: ClassVar[str] = "tracker"

    def __init__(
        self,
        config: TrackerConfiguration | QueueConfig | Mapping[str, Any],
        *,
        logger: logging.Logger | None = None,
        hook: str | None = None,
    ) -> None:
        loaded = config if isinstance(config, TrackerConfiguration) else tracker_configured(config)
        self.config = loaded
        settings, election = loaded.settings, loaded.election
        super().__init__(
            TrackerWorkload(settings, policy=loaded.policy, hook=hook),
            election=lambda: competitor(election, name=settings.name, kafka=settings.kafka),
            alone=election.kind is ElectionKind.NONE,
            spark=loaded.form.spark_options,
            logger=logger,
            metrics_seconds=loaded.form.metrics_seconds,
            step_down_seconds=loaded.form.step_down_seconds,
        )

    @property
    def redelivered(self) -> int:
        """The number of messages that this process has redelivered, over all its leaderships."""
        return self.process_counts.total("redelivered")
