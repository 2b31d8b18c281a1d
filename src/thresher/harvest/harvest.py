"""The relay as a program has it: a service whose workload is a relay, under the names that its users know.

See `thresher.service.service` for its life. The term of what it relays is its leader id; nothing touches the outbox
before leadership is acquired.
"""

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from thresher.core.errors import shorten
from thresher.election.election import competitor
from thresher.election.leadership import Leadership
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.form import check_settings
from thresher.harvest.problem import HarvestMisused
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.settings import Settings
from thresher.service.problem import ServiceMisused
from thresher.service.service import Service, State
from thresher.spark.policy import Policy
from thresher.spark.session.settings import SparkOptions

__all__ = ["Harvest", "State"]


class Harvest(Service):
    """One competitor for one relay. A context manager: entering starts, leaving stops. Safe from any thread.

    `election` says how to compete, or is a `Leadership` of the caller's own. A `logger` gets all that Thresher logs.
    """

    _noun: ClassVar[str] = "harvest"
    _misused: ClassVar[type[ServiceMisused]] = HarvestMisused

    def __init__(
        self,
        settings: Settings,
        *,
        election: ElectionSettings | Leadership | None = None,
        spark: SparkOptions | None = None,
        logger: logging.Logger | None = None,
        metrics_seconds: float = 5.0,
        policy: Policy | None = None,
        hook: str | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(spark, SparkOptions | None):
            raise HarvestMisused(
                f"spark= takes SparkOptions, not {shorten(spark)}: the program's own SparkContext is used by itself"
            )
        self.settings = settings
        chosen = election if election is not None else ElectionSettings()
        super().__init__(
            RelayWorkload(settings, policy=policy, hook=hook),
            election=partial(_competitor, settings, chosen),
            alone=isinstance(chosen, ElectionSettings) and chosen.kind is ElectionKind.NONE,
            spark=spark,
            logger=logger,
            metrics_seconds=metrics_seconds,
            draw=draw,
        )

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now."""
        return self.leader_id is not None

    @property
    def in_flight_records(self) -> int:
        """How many records were sent that are not committed yet, as of the shards' last beat."""
        return self._gauge("in_flight_rows")

    @property
    def in_flight_keys(self) -> int:
        """How many keys have such records, where the guarantee looks at keys."""
        return self._gauge("in_flight_keys")

    @property
    def relayed(self) -> int:
        """How many rows this process has relayed, over all its leaderships."""
        return self.ledger.total("relayed")

    def _gauge(self, name: str) -> int:
        leading = self._slot.leading
        snapshot = None if leading is None else leading.snapshot()
        return 0 if snapshot is None else int(sum(shard.gauges.get(name, 0) for shard in snapshot.shards))

    def _check(self) -> None:
        check_settings(self.settings)
        super()._check()


def _competitor(settings: Settings, election: ElectionSettings | Leadership) -> Leadership:
    if not isinstance(election, ElectionSettings):
        return election
    return competitor(
        election,
        name=settings.name,
        dsn=settings.dsn,
        schema=settings.outbox.schema,
        beside=settings.outbox.table,
        kafka=settings.kafka,
    )
