"""Writes the transactions of one marker partition, with the only producer that may do so.

Every outcome becomes certain.

1. `open` takes the partition over: it fences the previous owner and ends its transaction.
2. Each transaction commits the group's offset with a unique name as metadata. If its outcome is uncertain, a new
   producer ends it, and the name in the committed offset tells whether it was committed.
3. The writer checks the partition's claim before and after it fences. See `claims`.
4. If the committed offset has a name that this writer neither found nor wrote, another attempt at its shard has
   written since: `ProducerFenced` ends the writer.

A crash leaves at most one open transaction, which the successor's `open` ends.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.kafka.group.offsets import GroupOffset, group_metadata
from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.producer_problem import (
    CommitUnknown,
    OffsetsUnknown,
    ProducerFenced,
    ProducerProblem,
    ProducerRefused,
    RecordsUnanswered,
)
from thresher.kafka.refusal import Refusal
from thresher.kafka.transaction.pacing import await_ended
from thresher.kafka.transactional import TransactionalProducer, Undelivered
from thresher.tracker.claims import claimed, claimed_offset, is_by, producer_of
from thresher.tracker.message_partitions import MessagePartitions
from thresher.tracker.protocol.transaction import RecordRefused, RefusedKind, Transaction
from thresher.tracker.records import records_of
from thresher.tracker.settings import TrackerSettings

_OF_RECORD = frozenset({Refusal.ROW, Refusal.SIZE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The transaction was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """The transaction was aborted; a retry may succeed."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The transaction was aborted: the broker refuses a record of one of its messages."""

    why: str
    kind: RefusedKind


Outcome = Committed | Undone | Refused


class PartitionWriter:
    """The writer of one partition. For one thread."""

    def __init__(self, settings: TrackerSettings, partition: int, term: str, crash: CrashPoints) -> None:
        self._settings, self._partition, self._term, self._crash = settings, partition, term, crash
        self._group = group_metadata(settings.kafka, settings.name)
        self._producer: TransactionalProducer | None = None
        # The prefix of the transactions' names, unique to this writer.
        self._name, self._number = uuid.uuid4().hex[:12], 0
        # The metadata of the committed offset when this writer last saw or wrote it.
        self._known: str | None = None
        self._message_partitions = MessagePartitions(self._message_leaders)
        self._committed_at = 0.0

    def open(self) -> int | None:
        """Take the partition over, and return the committed offset, or None. Raises `Superseded`."""
        found = self._renew(first=True)
        self._crash.reach(CrashPoint.RECOVERY_FENCED)
        return None if found is None else found.offset

    def close(self) -> None:
        """Release the producer."""
        if self._producer is not None:
            self._producer.discard()
            self._producer = None

    def write(self, transaction: Transaction, now_ms: int) -> Outcome:
        """Write a transaction.

        Raises `Superseded`, `RecordRefused`, or an error after which the shard reads everything again. A fenced
        producer is such an error: the next attempt finds out whether the claim still holds. `now_ms` is the timestamp
        of the records, because a broker may refuse this machine's clock.
        """
        name = f"{self._name}:{self._number}"
        self._number += 1
        self._crash.hold([fate.marker.message_id.offset for fate in transaction.fates] if self._crash.watched else ())
        self._crash.reach(CrashPoint.BEFORE_BEGIN)
        try:
            return self._write(transaction, name, now_ms)
        except (CommitUnknown, OffsetsUnknown) as error:
            found = self._renew(in_doubt=name)
            return Committed() if is_by(found, self._term, name) else Undone(why=str(error))

    def _write(self, transaction: Transaction, name: str, now_ms: int) -> Outcome:
        producer = self._ready()
        producer.now_ms = now_ms
        records = records_of(
            transaction, self._settings, self._partition, self._message_partitions.choose, self._dead_partition
        )
        if not records:
            await_ended(self._committed_at)
        producer.begin()
        producer.produce(enumerate(records))
        try:
            faults = producer.flush()
        except RecordsUnanswered as error:
            # No commit was requested: the next producer's `init` aborts the transaction.
            undone = self._undone(((topic, partition) for topic, partition, _ in error.partitions), str(error))
            self._renew()
            return undone
        if faults:
            refused = self._judged(transaction, faults)
            self._renew()
            return refused
        self._crash.reach(CrashPoint.FLUSHED)
        offset = claimed(self._settings, self._partition, transaction.offset, self._term, name)
        producer.send_offsets([offset], self._group)
        self._crash.reach(CrashPoint.BEFORE_COMMIT)
        producer.commit()
        self._committed_at, self._known = time.monotonic(), offset.metadata
        self._crash.reach(CrashPoint.COMMITTED)
        return Committed()

    def _ready(self) -> TransactionalProducer:
        if self._producer is None or self._producer.spent:
            self._renew()
        if self._producer is None:
            raise ProducerProblem("the producer was closed after an error")
        return self._producer

    def _renew(self, *, first: bool = False, in_doubt: str | None = None) -> GroupOffset | None:
        """Replace the producer, and return the committed offset: no other producer can change it from now on.

        Raises `Superseded` if another leader has claimed the partition, and `ProducerFenced` if another attempt has
        written since. The `first` time, any committed offset is accepted.
        """
        self.close()
        self._offset(first, in_doubt)
        producer = producer_of(self._settings, self._settings.transactional_id(self._partition))
        producer.init(self._settings.marker_topic)
        found = self._offset(first, in_doubt)
        self._producer, self._known = producer, None if found is None else found.metadata
        return found

    def _offset(self, first: bool, in_doubt: str | None) -> GroupOffset | None:
        offset = claimed_offset(self._settings, self._partition, self._term)
        metadata = None if offset is None else offset.metadata
        ours = metadata == self._known or (in_doubt is not None and is_by(offset, self._term, in_doubt))
        if not first and not ours:
            raise ProducerFenced(f"another attempt at this shard has written for partition {self._partition}")
        return offset

    def _judged(self, transaction: Transaction, faults: list[Undelivered]) -> Outcome:
        """Return what the undelivered records mean. The transaction is not committed."""
        for fault in faults:
            if fault.refusal is Refusal.FENCED:
                raise ProducerFenced(f"{fault.topic}: {fault.why}")
            if fault.refusal in {Refusal.TOPIC_DENIED, Refusal.CLIENT}:
                raise ProducerRefused(
                    f"the broker refuses a record for {fault.topic}: {fault.why}; grant Write on the topic"
                )
        for fault in faults:
            if fault.refusal in _OF_RECORD:
                kind = self._kind(transaction, fault.topic)
                if kind is None:
                    raise RecordRefused(
                        f"{fault.topic} refuses a record of the tracker: {fault.why}; run 'thresher queue init' to "
                        "check the topic's settings"
                    )
                return Refused(why=fault.why, kind=kind)
        why = f"{faults[0].topic}: {faults[0].why}"
        if any(fault.refusal is not Refusal.TRANSIENT for fault in faults):
            raise ProducerProblem(why)
        return self._undone(((fault.topic, fault.partition) for fault in faults), why)

    def _kind(self, transaction: Transaction, topic: str) -> RefusedKind | None:
        """Return which record of a message a topic has refused; None for a record that belongs to no message."""
        if topic == self._settings.message_topic:
            return RefusedKind.MESSAGE
        if topic == self._settings.dead_topic and transaction.fates:
            return RefusedKind.LETTER
        return RefusedKind.COPY if topic == self._settings.marker_topic and transaction.copies else None

    def _undone(self, places: Iterable[tuple[str, int]], why: str) -> Undone:
        """Register that these message partitions failed with a retryable error: a retry uses others.

        Raises `ProducerProblem` if it was another topic, for which there is no other partition.
        """
        for topic, partition in places:
            if topic != self._settings.message_topic:
                raise ProducerProblem(why)
            self._message_partitions.failed(partition)
        return Undone(why=why)

    def _dead_partition(self, key: bytes) -> int:
        found = self._ready().partitions(self._settings.dead_topic)
        if isinstance(found, KafkaError):
            raise ProducerProblem(f"{self._settings.dead_topic}: {found.str()}")
        return murmur2_partition(key, found)

    def _message_leaders(self) -> Mapping[int, int]:
        found = self._ready().leaders(self._settings.message_topic)
        if isinstance(found, KafkaError):
            raise ProducerProblem(f"{self._settings.message_topic}: {found.str()}")
        return found
