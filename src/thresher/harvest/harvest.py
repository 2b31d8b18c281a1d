"""The relay as an object of a program: a service whose workload is a relay.

See `thresher.service.service` for its life cycle. The leader id is the term. Nothing touches the outbox before
leadership is acquired.
"""

import itertools
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from thresher.archive.background import LeaderArchive
from thresher.archive.run import ArchiveJob
from thresher.archive.target import target_of
from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import shorten
from thresher.delivery.shard.in_flight import IN_FLIGHT_KEYS, MOST_KEYS
from thresher.election.election import competitor
from thresher.election.leadership import Leadership
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.problem import HarvestMisused
from thresher.harvest.settings_check import check_settings
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.settings import Coordination, Settings
from thresher.relay.topic_lock.workload import TopicLockWorkload
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.problem import ServiceMisused
from thresher.service.service import Service, State
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.policy import Policy
from thresher.spark.session.settings import SparkOptions

__all__ = ["Harvest", "State"]

# Stands in for invalid settings.
_UNUSED = Settings(name="unused", data_source="", kafka={"bootstrap.servers": "unused"})


class Harvest(Service):
    """One competitor for one relay. A context manager: entering starts, leaving stops. Safe from any thread.

    `election` is the settings or the kind of the election, or the caller's own `Leadership`. A `logger` gets everything
    that Thresher logs. `start` raises for invalid settings, with every problem, and starts nothing.
    """

    _noun: ClassVar[str] = "harvest"
    _misused: ClassVar[type[ServiceMisused]] = HarvestMisused

    def __init__(
        self,
        settings: Settings,
        *,
        election: ElectionSettings | Leadership | str | None = None,
        spark: SparkOptions | None = None,
        logger: logging.Logger | None = None,
        metrics_seconds: float = 5.0,
        step_down_seconds: float = STEP_DOWN_SECONDS,
        policy: Policy | None = None,
        hook: str | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(spark, SparkOptions | None):
            raise HarvestMisused(
                f"spark= takes SparkOptions, not {shorten(spark)}: the program's own SparkContext is used by itself"
            )
        if not isinstance(settings, Settings):
            raise HarvestMisused(f"Settings(…) are needed, not {type(settings).__name__}")
        self._refusal: ConfigurationInvalid | None = None
        try:
            checked = check_settings(
                settings, election, metrics_seconds=metrics_seconds, step_down_seconds=step_down_seconds
            )  # fmt: skip
        except ConfigurationInvalid as refusal:
            self._refusal = refusal
            # Not used: `start` raises the refusal.
            checked = check_settings(_UNUSED)
        by_locks = checked.settings.coordination is Coordination.TOPIC_LOCK
        if by_locks and election is not None and not _is_none(checked.election):
            raise HarvestMisused(
                "election= has no effect with coordination 'topic-lock', where all processes work: leave it out"
            )
        chosen = ElectionSettings(kind=ElectionKind.NONE) if by_locks else checked.election
        self.settings = settings if self._refusal else checked.settings
        super().__init__(
            TopicLockWorkload(checked.settings, policy=policy, hook=hook)
            if by_locks
            else RelayWorkload(checked.settings, policy=policy, hook=hook, background_work=_archive(checked.settings)),
            election=partial(_competitor, checked.settings, chosen),
            alone=_is_none(chosen),
            spark=spark,
            logger=logger,
            metrics_seconds=checked.metrics_seconds,
            step_down_seconds=checked.step_down_seconds,
            draw=draw,
        )

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now."""
        return self.leader_id is not None

    @property
    def in_flight_records(self) -> int:
        """The number of records that were sent and whose rows are not settled yet, as of the shards' last heartbeat."""
        return int(sum(shard.gauges.get("in_flight_rows", 0) for shard in self._shards()))

    @property
    def in_flight_keys(self) -> tuple[bytes, ...]:
        """The keys of the records in flight, at most a thousand."""
        told = (key for shard in self._shards() for key in shard.notes.get(IN_FLIGHT_KEYS, ()))
        return tuple(key.encode("latin-1") for key in itertools.islice(told, MOST_KEYS))

    @property
    def relayed(self) -> int:
        """The number of rows that this process has relayed, over all its leaderships."""
        return self.process_counts.total("relayed")

    def _shards(self) -> tuple[ShardSnapshot, ...]:
        leading = self._slot.leading
        snapshot = None if leading is None else leading.snapshot()
        return () if snapshot is None else snapshot.shards

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        super()._check()


def _is_none(election: ElectionSettings | Leadership) -> bool:
    return isinstance(election, ElectionSettings) and election.kind is ElectionKind.NONE


def _archive(settings: Settings) -> LeaderArchive | None:
    if settings.archive_after_seconds is None:
        return None
    return LeaderArchive(
        ArchiveJob(
            dsn=settings.data_source,
            outbox=settings.outbox,
            target=target_of(settings.archive_to),
            older_than_seconds=settings.archive_after_seconds,
        )
    )


def _competitor(settings: Settings, election: ElectionSettings | Leadership) -> Leadership:
    if not isinstance(election, ElectionSettings):
        return election
    return competitor(
        election,
        name=settings.name,
        dsn=settings.data_source,
        schema=settings.outbox.schema,
        beside=settings.outbox.table,
        kafka=settings.kafka,
    )
