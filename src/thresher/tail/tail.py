"""The tail as an object for programs: a service that publishes committed changes from Postgres' write-ahead log.

See `thresher.service.service` for its life cycle. Before it leads, a tail fences nobody and reads no slot.
"""

import logging
from typing import ClassVar

from thresher.election.election import competitor
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.service import Service
from thresher.spark.policy import Policy
from thresher.spark.session.settings import SparkOptions
from thresher.tail.leader.workload import TailWorkload
from thresher.tail.settings import TailSettings, Via


class Tail(Service):
    """One candidate to read an outbox from the WAL. Entering it starts, leaving it stops. Safe from any thread.

    All that Thresher logs goes to `logger`. `hook` is for tests: see `thresher.delivery.crash_points`.
    """

    _noun: ClassVar[str] = "tail"

    def __init__(
        self,
        settings: TailSettings,
        *,
        election: ElectionSettings | None = None,
        spark: SparkOptions | None = None,
        logger: logging.Logger | None = None,
        metrics_seconds: float = 5.0,
        step_down_seconds: float = STEP_DOWN_SECONDS,
        policy: Policy | None = None,
        hook: str | None = None,
    ) -> None:
        self.settings = settings
        chosen = election or ElectionSettings()
        super().__init__(
            TailWorkload(settings, policy=policy, hook=hook),
            election=lambda: competitor(
                chosen,
                # A relay of the same name has a lease of its own.
                name=settings.group,
                dsn=settings.dsn,
                schema=settings.outbox.schema,
                beside=settings.outbox.table if settings.via is Via.TABLE else None,
                kafka=settings.kafka,
            ),
            alone=chosen.kind is ElectionKind.NONE,
            spark=spark,
            logger=logger,
            metrics_seconds=metrics_seconds,
            step_down_seconds=step_down_seconds,
        )

    @property
    def relayed(self) -> int:
        """How many rows this process has published, over all its leaderships."""
        return self.process_counts.total("relayed")
