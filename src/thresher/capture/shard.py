"""The two steps of a capture's pipeline, `read` and `apply`, which the engine runs in a Spark Python worker.

`apply` opens the reader at the offsets that are stored in the database. If another process has moved them meanwhile,
`apply` sets the reader to the stored offset. So two attempts at one shard do no harm: the stored offsets decide.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from thresher.capture.applying import Applied, Applier
from thresher.capture.failing_topics import FailingTopics
from thresher.capture.positions import Due, Part
from thresher.capture.problem import RecordsKeepFailing
from thresher.capture.reader import TopicsReader
from thresher.capture.record import Place
from thresher.capture.report.metrics import BETWEEN, HANDLING
from thresher.capture.settings import CaptureSettings, owned
from thresher.capture.start_offsets import facts_of, starts_of
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import StoredOffsets
from thresher.capture.store.schema import require_schema
from thresher.capture.store.tables import shard_sessions
from thresher.capture.targets import targets_of
from thresher.db.postgres.sessions import connect
from thresher.db.problem import DatabaseRefused
from thresher.delivery.crash_points import CrashPoints
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost
from thresher.spark.worker.shard import Shard

_POLL_SECONDS = 0.05
# How often to store what was read if no record came, and how often to update the gauges and, before an
# unreadable batch, to look whether somebody has stepped over it.
_PASS_SECONDS, _TELL_SECONDS = 1.0, 0.5
# Every session of a shard has the server's usual planner settings: `connect` sets others, for polling an outbox.
SESSION = "-c enable_seqscan=on -c enable_bitmapscan=on -c plan_cache_mode=auto"
# A handler may compute between two statements. A take-over ends the session, so the time-out may be long.
_WITH_HANDLER = f"{SESSION} -c idle_in_transaction_session_timeout=5min"


def session_of(settings: CaptureSettings) -> str:
    """Return the options of a shard's session."""
    return SESSION if all(each.handler is None for each in settings.mappings) else _WITH_HANDLER


class Source:
    """The reader of an attempt: `apply` opens it, and `read` uses it."""

    reader: TopicsReader | None = None


def read(shard: Shard, config: Mapping[str, Any]) -> Iterator[list[Part]]:
    """Yield what is read from the shard's partitions. `apply` has opened the reader before it asks for the first."""
    settings: CaptureSettings = config["settings"]
    source = shard.share(Source)
    while not shard.stopping:
        yield [] if source.reader is None else source.reader.poll(_POLL_SECONDS, settings.batch_records)


def apply(shard: Shard, config: Mapping[str, Any], batches: Iterator[list[Part]]) -> None:
    """Apply the records of the shard's partitions until there are no more batches, or until an error."""
    crash = CrashPoints(config.get("hook"), shard.index)
    attempt = Attempt(shard, config["settings"], config["term"], crash)
    with shard.step("open"):
        attempt.open()
    for parts in batches:
        attempt.take(parts)


class Attempt:
    """One attempt of one shard: a reader, a connection, and what was read and not stored yet."""

    def __init__(self, shard: Shard, settings: CaptureSettings, term: str, crash: CrashPoints) -> None:
        self._shard, self._settings = shard, settings
        connection = connect(settings.dsn, shard_sessions(settings.name, term, shard.index), session_of(settings))
        self._connection = shard.enter(closing(connection))
        self._admin = Admin.of(settings.kafka)
        self._offsets = StoredOffsets(self._connection, settings.tables, settings.name)
        with explained():
            require_schema(self._connection, settings.tables, settings.mappings)
            targets = targets_of(
                self._connection, settings.mappings, running=shard.step(HANDLING), handlers_path=settings.handlers_path
            )
        self._applier = Applier(self._connection, settings, targets, crash)
        self._reader = TopicsReader(settings.topics, settings.reader)
        self._topic_ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        # Parts without records whose end offset is not stored yet.
        self._passed: dict[Place, Part] = {}
        # The stored offset of each partition, as far as this attempt knows.
        self._stored: dict[Place, int] = {}
        self._failing = FailingTopics(settings.topics)
        # What the driver knows of: the fields of its last event of each name.
        self._told: dict[str, Mapping[str, Any]] = {"unreadable": {"batches": {}}, "failing": {"topics": {}}}
        self._pass_due = self._tell_due = 0.0

    def open(self) -> None:
        """Begin to read at the stored offsets."""
        shard, facts = self._shard, facts_of(self._admin, self._settings.topics)
        shard.share(Source).reader = shard.enter(self._reader)
        for topic, fact in facts.items():
            self._topic_ids[topic] = fact.topic_id
            self._add(topic, fact.partitions)
        shard.gauge("capturing", 1)
        shard.event("capturing", partitions=len(self._reader.positions))

    def take(self, parts: list[Part]) -> None:
        """Apply what was read, start to read added partitions, and update the gauges."""
        due = self._due(parts)
        while due:
            with self._shard.step("apply"):
                due = self._apply(due)
        for topic in self._failing.due(time.monotonic()):
            self._read(place for place in self._stored if place[0] == topic)
        for topic, count in self._reader.partitions().items():
            self._add(topic, count)
        self._tell()

    def _look_over(self) -> None:
        """Go on behind the unreadable batches that somebody has stepped over."""
        with explained():
            stored = self._offsets.read()
        for place in list(self._reader.unreadable):
            found = stored.get(place)
            if found is not None and found.next_offset > self._reader.positions[place]:
                self._passed.pop(place, None)
                self._stored[place] = found.next_offset
                self._reader.assign(place, found.next_offset)

    def _due(self, parts: list[Part]) -> list[Part]:
        """Return the parts to apply now. A part without records waits: the next record's transaction stores its end."""
        due = []
        for part in parts:
            passed = self._passed.pop(part.place, None)
            whole = part if passed is None else passed.joined(part)
            if whole.records:
                due.append(whole)
            elif whole.end > whole.start:
                self._passed[part.place] = whole
        if self._passed and time.monotonic() >= self._pass_due:
            due += self._passed.values()
            self._passed.clear()
            self._pass_due = time.monotonic() + _PASS_SECONDS
        return due

    def _apply(self, parts: list[Part]) -> list[Part]:
        """Apply parts. If a topic's records keep failing, it waits, and the parts of the others are returned."""
        try:
            with explained():
                done = self._applier.apply(parts, self._topic_ids)
        except RecordsKeepFailing as error:
            self._failing.fail(error, time.monotonic())
            for place in [each for each in self._reader.positions if each[0] == error.topic]:
                self._passed.pop(place, None)
                self._reader.leave(place)
            return [part for part in parts if part.topic != error.topic]
        except DatabaseRefused:
            with explained():
                # If the schema has changed, this raises an error with the statement that fixes it.
                require_schema(self._connection, self._settings.tables, self._settings.mappings)
            raise
        for place, verdict in done.verdicts.items():
            self._stored[place] = verdict.end if isinstance(verdict, Due) else verdict.stored
            if not isinstance(verdict, Due) and verdict.stored != self._reader.positions[place]:
                self._passed.pop(place, None)
                self._reader.assign(place, verdict.stored)
                self._shard.count("started_over")
        self._failing.applied([topic for topic in done.records if not done.failing.get(topic)])
        self._count(done)
        return []

    def _add(self, topic: str, count: int) -> None:
        """Read the partitions of a topic that are not read yet."""
        if count <= self._counts.get(topic, 0):
            return
        added = [each for each in range(self._counts.get(topic, 0), count) if self._owns(each)]
        self._counts[topic] = count
        with explained():
            starts = starts_of(self._admin, self._offsets, topic, self._topic_id(topic), added)
        self._stored |= starts
        if not self._failing.waits(topic):
            self._read(starts)

    def _read(self, places: Iterable[Place]) -> None:
        """Read these partitions at their stored offsets."""
        for place in places:
            self._reader.assign(place, self._stored[place])

    def _topic_id(self, topic: str) -> str:
        found = self._topic_ids.get(topic)
        if found is None:
            raise BrokerLost(f"the id of topic {topic} is not known yet")
        return found

    def _owns(self, partition: int) -> bool:
        return owned(partition, self._shard.index, self._shard.shards)

    def _count(self, done: Applied) -> None:
        for topic, records in done.records.items():
            self._shard.count("captured", records)
            self._shard.count(f"captured{BETWEEN}{topic}", records)
        for (topic, kind), records in done.dead.items():
            self._shard.count("dead", records)
            self._shard.count(f"dead{BETWEEN}{topic}", records)
            self._shard.count(f"dead_kind{BETWEEN}{kind}", records)
            self._shard.event("dead", topic=topic, kind=kind, records=records)

    def _tell_once(self, event: str, **fields: Any) -> None:
        """Tell the driver, unless it knows."""
        if self._told[event] != fields:
            self._told[event] = fields
            self._shard.event(event, **fields)

    def _tell(self) -> None:
        now = time.monotonic()
        if now < self._tell_due:
            return
        self._tell_due = now + _TELL_SECONDS
        if self._reader.unreadable:
            self._look_over()
        batches = {f"{topic}/{partition}": first for (topic, partition), first in self._reader.unreadable.items()}
        self._tell_once("unreadable", batches=batches)
        self._tell_once("failing", topics=self._failing.reasons())
        lag = self._reader.lag(self._stored)
        self._shard.gauge("lag", sum(lag.values()))
        for topic, offsets in lag.items():
            self._shard.gauge(f"lag{BETWEEN}{topic}", offsets)
