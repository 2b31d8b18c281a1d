"""Finds where a member begins, as `first_offsets` decides: queries the broker, commits first offsets, writes notes."""

import threading
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message

from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail
from thresher.kafka.group.offsets import GroupOffset, group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.queue.configuration import QueueConfig
from thresher.queue.hand_off.first_offsets import Beginning, Note, beginning, notes_of
from thresher.queue.problem import TopicsUnsuitable
from thresher.queue.sending.shared_producer import SharedProducer
from thresher.queue.topics import await_topics

_ANSWER_SECONDS = 10.0

# Commits the group's first offsets, by partition. Raises `BrokerLost` if that is not certain.
CommitFirst = Callable[[Mapping[int, int]], None]


class StartingOffsets:
    """Finds the starting offsets for one consumer's memberships. For one thread."""

    def __init__(self, queue: bytes, group: str, config: QueueConfig, producer: SharedProducer) -> None:
        self._queue, self._group, self._config, self._producer = queue, group, config, producer
        self._admin = Admin.of(config.clients)
        self._noted: frozenset[int] = frozenset()
        self._topic_id = ""

    def require_topics(self) -> None:
        """Check that the broker accepts the credentials and has the topics: Kafka's clients would wait silently.

        Raises `BrokerRefused` or `TopicsUnsuitable`, or `BrokerLost` if a retry may succeed.
        """
        config = self._config
        try:
            self._admin.require_answer()
            await_topics(
                self._admin, [config.message_topic, config.marker_topic, config.queues_topic, config.dead_topic]
            )
        except KafkaException as error:
            raise broker_problem(f"{config.bootstrap_servers} cannot be used", error.args[0]) from error

    def begin(self, partitions: list[int], commit: CommitFirst) -> Beginning:
        """Return where to begin in these partitions. First offsets are committed, then noted.

        Raises `OffsetsLost`, `TopicsUnsuitable`, `BrokerRefused`, or `BrokerLost` if a retry may succeed.
        """
        client, topic = self._admin.client, self._config.message_topic
        self._read_notes(partitions)
        # The offsets are read last, because another member may still change them.
        ends = partition_ends(client, topic, partitions, timeout_seconds=_ANSWER_SECONDS)
        start = beginning(self._queue, self.committed(partitions), ends, self._noted)
        if start.to_commit:
            commit(start.to_commit)
        self._note(start)
        return start

    def committed(self, partitions: Iterable[int]) -> dict[int, GroupOffset]:
        """Return the group's committed offsets. This waits for open transactions that include offsets of the group."""
        return group_offsets(
            self._config.clients, self._group, self._config.message_topic, partitions, timeout_seconds=_ANSWER_SECONDS
        )

    def _read_notes(self, partitions: list[int]) -> None:
        topic_id = self._find_topic_id()
        if topic_id == self._topic_id and self._noted.issuperset(partitions):
            return
        self._topic_id = topic_id
        noted: frozenset[int] = frozenset()
        # All partitions are read, because partitions may have been added since a note was written.
        for place in range(self._producer.partitions(self._config.queues_topic, _ANSWER_SECONDS)):
            with CommittedTail(self._config.queues_topic, place, self._config.clients) as tail:
                noted |= notes_of(self._queue, topic_id, tail.whole())
        self._noted = noted

    def _find_topic_id(self) -> str:
        try:
            found = self._admin.topic(self._config.message_topic)
        except KafkaException as error:
            raise broker_problem(
                f"the topic {self._config.message_topic} could not be looked up", error.args[0]
            ) from error
        if found is None:
            raise TopicsUnsuitable(
                f"there is no topic {self._config.message_topic}: make it with 'thresher queue init'"
            )
        return found.topic_id

    def _note_partition(self) -> int:
        return murmur2_partition(self._queue, self._producer.partitions(self._config.queues_topic, _ANSWER_SECONDS))

    def _note(self, start: Beginning) -> None:
        """Write the notes, and wait until the broker has confirmed them."""
        if not start.to_note:
            return
        answered = threading.Semaphore(0)
        errors: list[KafkaError] = []

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(error)
            answered.release()

        place = self._note_partition()
        for partition in start.to_note:
            note = Note(
                queue=self._queue, topic_id=self._topic_id, partition=partition, offset=start.offsets[partition]
            )
            self._producer.produce(self._config.queues_topic, note.encode(), note.key, report, partition=place)
        for _ in start.to_note:
            if not answered.acquire(timeout=_ANSWER_SECONDS):
                raise BrokerLost(f"the broker did not confirm the records for {self._config.queues_topic} in time")
        if errors:
            what = f"the broker did not confirm the records for {self._config.queues_topic}"
            raise broker_problem(what, errors[0], rights="Write")
        self._noted |= set(start.to_note)
