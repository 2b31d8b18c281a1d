"""A test's message topic and marker topic, their contents, and the verdict on them."""

import itertools
import time
import uuid
from collections import Counter
from typing import Any

from confluent_kafka.admin import NewPartitions

from tests.processes import eventually
from tests.queue.verdict import Held, Placed, judge_markers
from tests.servers import configure
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail, TailUnread
from thresher.kafka.group.offsets import group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.queue import group_of
from thresher.queue.topics import init_topics
from thresher.queue.wire.marker import MarkerType, MessageId, decode


class QueueTopics:
    """A message topic and a marker topic, created at once."""

    def __init__(
        self, bootstrap: str, *, partitions: int = 3, marker_partitions: int = 2, direct: str | None = None, **keys: Any
    ) -> None:
        """`direct` is the broker's address for the test's own reads, if `bootstrap` leads through a proxy."""
        name = uuid.uuid4().hex[:12]
        given = {"bootstrap-servers": bootstrap, "message-topic": f"{name}-messages", "marker-topic": f"{name}-markers"}
        self.config: QueueConfig = configured({**given, **keys})
        self.eyes = {"bootstrap.servers": direct or bootstrap}
        self.admin = Admin.of(self.eyes)
        made = configured({**given, **keys, "bootstrap-servers": direct or bootstrap})
        for topic in init_topics(made, partitions=partitions, marker_partitions=marker_partitions):
            assert not topic.problems, topic

    def configure(self, topic: str, **settings: str) -> None:
        """Change settings of a topic; names have underscores in the place of dots."""
        configure(self.admin, topic, **{name.replace("_", "."): value for name, value in settings.items()})

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise a topic's number of partitions, and wait until the broker shows it."""
        for future in self.admin.client.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(30)
        eventually(lambda: getattr(self.admin.topic(topic), "partitions", 0) == partitions, 30.0)

    def markers(self, queue: bytes | None = None) -> list[Placed]:
        """Return the committed markers, of one queue or of all, in the order of each partition."""
        found = [
            Placed(partition, offset, decode(content))
            for partition, offset, content in self.contents(self.config.marker_topic)
        ]
        if queue is None:
            return found
        ours = {each.marker.message_id for each in found if each.marker.key == queue}
        return [each for each in found if each.marker.message_id in ours]

    def contents(self, topic: str) -> list[tuple[int, int, bytes]]:
        """Return the committed records of a topic: partition, offset and value, in the order of each partition."""
        facts = self.admin.topic(topic)
        assert facts is not None
        return [
            (partition, offset, content)
            for partition in range(facts.partitions)
            for offset, content in self._contents_of(topic, partition)
        ]

    def _contents_of(self, topic: str, partition: int) -> list[tuple[int, bytes]]:
        """Return a partition's records. For a new partition, the broker's first answers may differ: then try again."""
        for tries in itertools.count(1):
            try:
                with CommittedTail(topic, partition, self.eyes) as tail:
                    return [(record.offset, record.value) for record in tail.records()]
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

    def offsets(self, queue: bytes, timeout_seconds: float = 60.0) -> dict[int, int]:
        """Return the group's offsets, once no open transaction holds any of them."""
        facts = self.admin.topic(self.config.message_topic)
        assert facts is not None
        found = group_offsets(
            self.eyes,
            group_of(queue),
            self.config.message_topic,
            range(facts.partitions),
            timeout_seconds=timeout_seconds,
        )
        return {partition: each.offset for partition, each in found.items()}

    def ends(self) -> dict[int, int]:
        """Return the end offset of each partition of the message topic."""
        facts = self.admin.topic(self.config.message_topic)
        assert facts is not None
        found = partition_ends(self.admin.client, self.config.message_topic, range(facts.partitions))
        return {partition: end.high for partition, end in found.items()}

    def is_stable(self) -> bool:
        """Whether no transaction is open on the marker topic: it would hide the markers behind it, of all queues."""
        facts = self.admin.topic(self.config.marker_topic)
        assert facts is not None
        ends = partition_ends(self.admin.client, self.config.marker_topic, range(facts.partitions))
        return all(end.stable == end.high for end in ends.values())

    def told(self, queue: bytes) -> str:
        """Return the state of a queue, for a failure's message."""
        (group,) = self.admin.client.describe_consumer_groups([group_of(queue)], request_timeout=30).values()
        found = group.result()
        members = [
            (member.member_id, [place.partition for place in member.assignment.topic_partitions])
            for member in found.members
        ]
        kinds = Counter(each.marker.type.name for each in self.markers(queue))
        return (
            f"offsets {self.offsets(queue)}, ends {self.ends()}, markers {dict(kinds)}, no open transaction: "
            f"{self.is_stable()}, group {found.state.name}, members {members}"
        )

    def verdict(self, queue: bytes, sent: set[MessageId]) -> list[str]:
        """Return the broken promises: an offset committed without a Start, or a message started twice."""
        messages = {place: str(place) for place in sent}
        held = Held(messages=messages, markers=self.markers(queue), offsets=self.offsets(queue))
        found = judge_markers(held, redelivery_ms=self.config.redelivery_timeout)
        return [line for fault, line in found if fault != "waiting"]
