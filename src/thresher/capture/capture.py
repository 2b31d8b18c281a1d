"""The capture as an object for programs: a service that applies the records of topics to tables.

See `thresher.service.service` for its life cycle.
"""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from thresher.capture.configuration import CaptureConfiguration, capture_configured
from thresher.capture.workload import CaptureWorkload
from thresher.election.election import competitor
from thresher.election.settings import ElectionKind
from thresher.service.service import Service


class Capture(Service):
    """One candidate to lead a capture. A context manager: entering starts, leaving stops. Safe from any thread.

    `config` has the keys of a configuration file. All that Thresher logs goes to `logger`. `hook` is for tests: see
    `thresher.delivery.crash_points`.
    """

    _noun: ClassVar[str] = "capture"

    def __init__(
        self,
        config: CaptureConfiguration | Mapping[str, Any],
        *,
        logger: logging.Logger | None = None,
        hook: str | None = None,
    ) -> None:
        loaded = config if isinstance(config, CaptureConfiguration) else capture_configured(config)
        self.config = loaded
        settings, election = loaded.settings, loaded.election
        super().__init__(
            CaptureWorkload(settings, hook=hook),
            election=lambda: competitor(
                election, name=settings.lease, kafka=settings.kafka, dsn=settings.dsn, schema=settings.schema
            ),
            alone=election.kind is ElectionKind.NONE,
            spark=loaded.form.spark_options,
            logger=logger,
            metrics_seconds=loaded.form.metrics_seconds,
            step_down_seconds=loaded.form.step_down_seconds,
        )

    @property
    def captured(self) -> int:
        """How many records this process has captured, over all its leaderships."""
        return self.process_counts.total("captured")
