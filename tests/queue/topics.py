"""A pair of topics of a test, and what is in them: the messages, their markers, and whether both keep the promise."""

import itertools
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail, TailUnread
from thresher.kafka.group_offsets import group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.queue import group_of
from thresher.queue.topics import init_topics
from thresher.queue.wire.marker import Marker, MarkerType, MessageId, decode


@dataclass(frozen=True, slots=True)
class Placed:
    """A marker, where it lies."""

    partition: int
    offset: int
    marker: Marker


class QueueTopics:
    """Topics of their own, made at once."""

    def __init__(
        self, bootstrap: str, *, partitions: int = 3, marker_partitions: int = 2, direct: str | None = None, **keys: Any
    ) -> None:
        """`direct` is the way to the broker for the test's own eyes, where `bootstrap` leads through a proxy."""
        name = uuid.uuid4().hex[:12]
        given = {"bootstrap-servers": bootstrap, "message-topic": f"{name}-messages", "marker-topic": f"{name}-markers"}
        self.config: QueueConfig = configured({**given, **keys})
        self.eyes = {"bootstrap.servers": direct or bootstrap}
        self.admin = Admin.of(self.eyes)
        made = configured({**given, **keys, "bootstrap-servers": direct or bootstrap})
        for topic in init_topics(made, partitions=partitions, marker_partitions=marker_partitions):
            assert not topic.problems, topic

    def markers(self, queue: bytes | None = None) -> list[Placed]:
        """Return the committed markers, of one queue or of all, in the order of each partition."""
        found = []
        facts = self.admin.topic(self.config.marker_topic)
        assert facts is not None
        for partition in range(facts.partitions):
            found += self._markers_in(partition)
        if queue is None:
            return found
        ours = {each.marker.message_id for each in found if each.marker.key == queue}
        return [each for each in found if each.marker.message_id in ours]

    def _markers_in(self, partition: int) -> list[Placed]:
        """Return a partition's markers. Of one that was just added, the broker's answers may differ at first."""
        for tries in itertools.count(1):
            try:
                with CommittedTail(self.config.marker_topic, partition, self.eyes, fenced=False) as tail:
                    return [Placed(partition, tail.offset, decode(content)) for content in tail.whole()]
            except TailUnread:
                if tries == 20:
                    raise
                time.sleep(0.5)
        raise AssertionError("the count has no end")

    def started(self, queue: bytes) -> Counter[MessageId]:
        """Return how often each message of a queue was started."""
        return Counter(each.marker.message_id for each in self.markers(queue) if each.marker.type is MarkerType.START)

    def ended(self, queue: bytes) -> set[MessageId]:
        """Return the messages of a queue that were acked."""
        return {each.marker.message_id for each in self.markers(queue) if each.marker.type is MarkerType.END}

    def offsets(self, queue: bytes) -> dict[int, int]:
        """Return the group's offsets."""
        facts = self.admin.topic(self.config.message_topic)
        assert facts is not None
        found = group_offsets(
            self.eyes, group_of(queue), self.config.message_topic, range(facts.partitions), timeout_seconds=60
        )
        return {partition: each.offset for partition, each in found.items()}

    def ends(self) -> dict[int, int]:
        """Return the end of each partition of the messages."""
        facts = self.admin.topic(self.config.message_topic)
        assert facts is not None
        found = partition_ends(self.admin.client, self.config.message_topic, range(facts.partitions))
        return {partition: end.high for partition, end in found.items()}

    def is_stable(self) -> bool:
        """Whether no transaction is open on the markers: one hides those behind it, of all queues."""
        facts = self.admin.topic(self.config.marker_topic)
        assert facts is not None
        ends = partition_ends(self.admin.client, self.config.marker_topic, range(facts.partitions))
        return all(end.stable == end.high for end in ends.values())

    def verdict(self, queue: bytes, sent: set[MessageId]) -> list[str]:
        """Return what contradicts the promise: none committed without a Start, none started twice."""
        wrong = []
        started, offsets = self.started(queue), self.offsets(queue)
        wrong += [f"{each} was started {count} times" for each, count in started.items() if count > 1]
        wrong += [f"{each} was started and never sent" for each in started if each not in sent]
        for each in sorted(sent - set(started)):
            if offsets.get(each.partition, 0) > each.offset:
                wrong.append(f"{each} was passed without a Start")
        for each in started:
            if offsets.get(each.partition, 0) <= each.offset:
                wrong.append(f"{each} was started, and the group's offset is before it")
        starts = {p.marker.message_id: p for p in self.markers(queue) if p.marker.type is MarkerType.START}
        for placed in self.markers(queue):
            start = starts[placed.marker.message_id]
            if placed.partition != start.partition:
                wrong.append(f"{placed} is not in the partition of its Start")
            elif placed.offset < start.offset:
                wrong.append(f"{placed} is before its Start")
        return wrong
