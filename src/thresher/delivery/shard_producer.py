"""The producer of one attempt, with one of the shard's transactional ids.

If the last transaction of an id cannot end, the id is blocked, and the shard goes on with another (`claims` says when
it may). An attempt has one producer at a time: the last one is discarded before the next is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from confluent_kafka import KafkaException

from thresher.core.errors import Trouble
from thresher.delivery.claims import Claim
from thresher.delivery.effects import Blocked
from thresher.delivery.row import Headers, Record
from thresher.kafka.admin import Admin
from thresher.kafka.producer_problem import InitBlocked, ProducerProblem
from thresher.kafka.transactional import TransactionalProducer, Undelivered

# A smaller batch.size makes no sense for the client.
_MIN_BATCH_BYTES = 16_000
# How many partitions a message names.
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressTopic:
    """One partition of the progress topic, and how a progress record is encoded and sealed."""

    topic: str
    partition: int
    encode: Callable[[Any], bytes]
    # Returns the headers for a key and a value: the seal, which proves who wrote the record.
    headers: Callable[[bytes, bytes], Headers | None] = lambda _key, _value: None

    def record(self, value: bytes, claim: Claim) -> Record:
        """Return the progress record with this value and its author's claim. With an empty value it is the claim."""
        key = claim.encoded()
        return Record(self.topic, value, key, self.partition, 0, self.headers(key, value))

    @property
    def opener(self) -> Record:
        """An empty record that opens a transaction: readers take it neither for progress nor for a claim."""
        return Record(self.topic, b"", None, self.partition, 0, None)


class MakeProducer(Protocol):
    """Makes the producer of a transactional id of the shard."""

    def __call__(self, id_index: int, more: dict[str, Any], /, *, brief: bool = False) -> TransactionalProducer:
        """Return a producer that has not been initialised."""


class ShardProducer:
    """Makes the producers of one attempt, one at a time. For the task's own thread.

    `make` makes the producer of an id, with extra properties; a `brief` one has short time-outs. `claimant` is the
    random id of this attempt.
    """

    def __init__(
        self,
        make: MakeProducer,
        *,
        claimant: str,
        admin: Admin,
        progress: ProgressTopic,
        batch_bytes: int,
    ) -> None:
        self._make, self._admin, self._progress = make, admin, progress
        self._producer: TransactionalProducer | None = None
        # Our claim; and the record of it once committed, which a reader of the progress has to find.
        self.claim = Claim(id_index=0, claimant=claimant)
        self.claimed: Record | None = None
        self._batch_bytes = batch_bytes
        # A smaller batch.size, once a batch was too large for its topic: its records may each be small enough.
        self._reduced: int | None = None

    @property
    def producer(self) -> TransactionalProducer:
        """The producer. Its `init_transactions` has fenced all others of its id."""
        if self._producer is None:
            raise AssertionError("init first")
        return self._producer

    @property
    def initialised(self) -> bool:
        """Whether a producer was made."""
        return self._producer is not None

    def init(self, id_index: int) -> Blocked | None:
        """Fence the last producer of an id and end its transaction; return `Blocked` if it cannot end."""
        self.discard()
        self.claim, self.claimed = replace(self.claim, id_index=id_index, number=self.claim.number + 1), None
        self._producer = self._make(id_index, {} if self._reduced is None else {"batch.size": self._reduced})
        try:
            self._producer.init(self._progress.topic)
        except InitBlocked as problem:
            return Blocked(f"{problem}; {self.unhealthy()}")
        return None

    def discard(self) -> None:
        """Discard the producer. The next one's `init` ends its transaction."""
        if self._producer is not None:
            self._producer.discard()

    def has_ended(self, id_index: int) -> bool:
        """Whether the last transaction of an id that we left is known to have ended."""
        producer = self._make(id_index, {}, brief=True)
        try:
            producer.init(self._progress.topic)
        except (ProducerProblem, Trouble):
            # No error may end the attempt here: it would lose its claim while the id is blocked.
            return False
        finally:
            producer.discard()
        return True

    def write_claim(self) -> list[Undelivered]:
        """Commit our claim to the progress partition. Return the claim's record if the topic did not take it."""
        record = self._progress.record(b"", self.claim)
        self.producer.begin()
        self.producer.produce([(0, record)])
        undelivered = self.producer.flush()
        if not undelivered:
            self.producer.commit()
            self.claimed = record
        return undelivered

    def reduce_batches(self) -> None:
        """Halve the batch.size of the next producer."""
        self._reduced = max(_MIN_BATCH_BYTES, (self._reduced or self._batch_bytes) // 2)

    def unhealthy(self) -> str:
        """Return a text that names the unhealthy partitions: a transaction on one of them cannot end."""
        try:
            found = self._admin.unhealthy()
        except KafkaException as error:
            return f"the cluster did not say which partitions are unhealthy: {error.args[0].str()}"
        if not found:
            return "all partitions of the cluster have their leaders and replicas"
        return f"partitions without a leader or a replica: {', '.join(found[:_MAX_NAMED])}, {len(found)} in all"
