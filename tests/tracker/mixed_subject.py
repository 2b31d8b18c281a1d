"""Queues with trackers as the subject of a random soak: every message is processed or becomes a dead letter."""

import math
import signal
from typing import Any

from tests.faults.fault_schedule import Kinds, one, pausing
from tests.faults.mix.agenda import DOWN
from tests.faults.mix.crew import Started
from tests.faults.mix.signals import end, pause
from tests.faults.program import Program
from tests.processes import eventually, is_java
from tests.queue.mixed_consumers import Consumers
from tests.queue.mixed_subject import _STABLE_SECONDS, OTHER, QUEUES, MixedQueues, queue_kinds
from tests.queue.verdict import QueueVerdict, identity_of
from tests.tracker.tracked import committed
from tests.tracker.verdict import FAULTS, Timed, Tracked, judge
from thresher.kafka.group.offsets import group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.queue.wire.marker import MarkerMalformed, MessageId, decode
from thresher.queue.wire.record import ORIGIN_ID, parse_message_id

TRACKERS = 2
# Up to this many records behind the offsets of all queues, the topics are read to find out whether a message waits.
_TRAILING = 200
SECTION = {"election": "neli", "status": "off", "shards": 2, "num-offsets-per-commit": 50}
_KINDS: Kinds = {
    "kill-tracker": (3, one),
    "kill-tracker-jvm": (1, one),
    "kill-tracker-worker": (3, one),
    "pause-tracker": (3, lambda draw: {**one(draw), **pausing(draw)}),
    "end-tracker": (1, one),
}


def tracked_kinds(nodes: int = 1) -> Kinds:
    """Return every kind of fault that queues and their trackers meet."""
    return {**queue_kinds(nodes), **_KINDS}


class TrackedConsumers(Consumers):
    """Consumers and trackers; one of the trackers leads."""

    @property
    def _trackers(self) -> list[Started]:
        return [each for each in self._started if getattr(each, "tracks", False)]

    def keep_up(self, *, newest_ended: bool) -> None:  # noqa: ARG002 - any of them may end
        while len(self._trackers) < TRACKERS:
            begun = self._begun({"tracker": True})
            begun.tracks = True  # type: ignore[attr-defined]
            begun.excused[-signal.SIGTERM] = math.inf
        while len(self._started) - len(self._trackers) < 2:
            self._add()

    def _chosen(self, which: int) -> Started:
        consumers = [each for each in self._started if each not in self._trackers]
        return consumers[which % len(consumers)]

    def _tracker(self, which: int) -> Started:
        return self._trackers[which % len(self._trackers)]

    # Faults

    def kill_tracker(self, which: int) -> bool:
        victim = self._tracker(which)
        victim.excuse(-signal.SIGKILL)
        return end([victim.pid])

    def kill_tracker_jvm(self, which: int) -> bool:
        victim = self._tracker(which)
        victim.excused[1] = math.inf
        return end([pid for pid in victim.below() if is_java(pid)])

    def kill_tracker_worker(self, which: int) -> bool:
        victim = self._tracker(which)
        # Before the first worker starts, the last descendant may be the JVM.
        victim.excused[1] = math.inf
        return end(victim.below()[-1:])

    def pause_tracker(self, which: int, seconds: float) -> bool:
        return pause(self._agenda, self._tracker(which).everything(), seconds)

    def end_tracker(self, which: int) -> None:
        leaving = self._tracker(which)
        leaving.excused[0] = math.inf
        leaving.process.terminate()


class TrackedQueues(MixedQueues):
    """The same queues, with trackers."""

    def crew(self, stage: Any) -> TrackedConsumers:
        return TrackedConsumers(stage)

    def program(self, **settings: Any) -> Program:
        if settings.pop("tracker", False):
            return Program(
                module="tests.tracker.program", settings={"keys": {**self._keys, "redelivery-tracker": SECTION}}
            )
        return super().program(**settings)

    def drained(self) -> bool:
        try:
            if self._stand()[0] > _TRAILING or not self._topics.is_stable() or not self._nothing_in_progress():
                return False
            return not self._unpassed()
        except DOWN:
            return False

    def _unpassed(self) -> bool:
        """Whether a message waits. A partition may end in transaction markers, whose offsets no consumer passes."""
        records = committed(self._topics, self._topics.config.message_topic)
        for queue in QUEUES:
            offsets = self._topics.offsets(queue.encode())
            if any(record.offset >= offsets.get(record.partition, 0) for record in records):
                return True
        return False

    def _nothing_in_progress(self) -> bool:
        """Whether the trackers have committed the end of the marker topic: they need no marker any more."""
        config, eyes = self._topics.config, self._topics.eyes
        facts = self._topics.admin.topic(config.marker_topic)
        assert facts is not None
        partitions = range(facts.partitions)
        found = group_offsets(eyes, f"{config.marker_topic}.tracker", config.marker_topic, partitions)
        ends = partition_ends(self._topics.admin.client, config.marker_topic, partitions)
        return all(
            end.high == 0 or (partition in found and found[partition].offset == end.high)
            for partition, end in ends.items()
        )

    def verdict(self, *, everything: bool = False) -> QueueVerdict:  # noqa: ARG002 - no reader may get a repeat
        eventually(self._topics.is_stable, _STABLE_SECONDS, self.circumstances)
        config = self._topics.config
        records = committed(self._topics, config.message_topic)
        markers = []
        self._malformed = 0
        for record in committed(self._topics, config.marker_topic):
            try:
                # A consumer's markers have their queue's key; a tracker's Ends have no key.
                markers.append(Timed(record.timestamp_ms, decode(record.value or b""), by_tracker=record.key is None))
            except MarkerMalformed:
                self._malformed += 1
        self._tracked = Tracked(
            messages={
                MessageId(each.partition, each.offset): identity_of(each.value or b"")
                for each in records
                if _queue(each.value) != OTHER
            },
            origins={
                MessageId(each.partition, each.offset): origin
                for each in records
                if (origin := parse_message_id(dict(each.headers).get(ORIGIN_ID) or b"")) is not None
            },
            markers=markers,
            dead=[
                identity_of(each.value) for each in committed(self._topics, config.dead_topic) if each.value is not None
            ],
            confirmed=frozenset(name for name in self._load.confirmed if not name.startswith(f"{OTHER}/")),
            sent=frozenset(self._load.sent),
        )
        self._verdict = QueueVerdict.of(judge(self._tracked), FAULTS)
        return self._verdict

    def wrong(self) -> list[str]:
        return [f"{self._malformed} records of the marker topic are no markers"] if self._malformed else []

    def figures(self) -> dict[str, int]:
        held = self._tracked
        return {
            "sent": len(held.sent),
            "confirmed": len(held.confirmed),
            "redelivered": len(held.origins),
            "dead": len(held.dead),
            "markers": len(held.markers),
            **self._verdict.counts,
        }


def _queue(payload: bytes | None) -> str:
    return identity_of(payload or b"").rpartition("/")[0]
