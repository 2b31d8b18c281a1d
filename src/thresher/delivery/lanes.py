"""The producer of one attempt, through the lane of its shard that it writes with.

A lane is one transactional id. One whose last transaction cannot end is blocked, and the shard goes on with another
(`claims` says when it may). No producer of ours is left behind: it is discarded before the next one is made.
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

# The least that makes sense for a batch of the client's.
_LEAST_BATCH_BYTES = 16_000
# The partitions that a message names.
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressTopic:
    """Where progress goes, and how a record is written there."""

    topic: str
    partition: int
    encode: Callable[[Any], bytes]
    # The headers of a record with this key and content: what proves who wrote it.
    headers: Callable[[bytes, bytes], Headers | None] = lambda _key, _value: None

    def record(self, value: bytes, claim: Claim) -> Record:
        """Return the record of some progress, by the author of a claim; an empty one is the claim itself."""
        key = claim.encoded()
        return Record(self.topic, value, key, self.partition, 0, self.headers(key, value))

    @property
    def opener(self) -> Record:
        """An empty record, which opens a transaction: no reader takes it for progress or for a claim."""
        return Record(self.topic, b"", None, self.partition, 0, None)


class MakeProducer(Protocol):
    """Makes producers of lanes."""

    def __call__(self, lane: int, more: dict[str, Any], /, *, brief: bool = False) -> TransactionalProducer:
        """Return a producer that has not been initialised."""


class Lanes:
    """Makes the producers of one attempt. For the task's own thread.

    `make` makes the producer of a lane with these properties besides its own; a `brief` one waits for nobody for long.
    `claimant` tells this attempt from all others.
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
        # Who writes, with which lane; and the record of that claim, which a reader of the progress has to find.
        self.claim = Claim(lane=0, claimant=claimant)
        self.claimed: Record | None = None
        self._batch_bytes = batch_bytes
        # Smaller after a batch that was too large for its topic, though perhaps none of its records was.
        self._reduced: int | None = None

    @property
    def producer(self) -> TransactionalProducer:
        """The producer whose `init_transactions` fenced all others of its lane."""
        if self._producer is None:
            raise AssertionError("init first")
        return self._producer

    @property
    def initialised(self) -> bool:
        """Whether `init_transactions` was done once."""
        return self._producer is not None

    def init(self, lane: int) -> Blocked | None:
        """Fence whoever writes with a lane, and end its transaction; say so if that cannot end."""
        self.discard()
        self.claim, self.claimed = replace(self.claim, lane=lane, number=self.claim.number + 1), None
        self._producer = self._make(lane, {} if self._reduced is None else {"batch.size": self._reduced})
        try:
            self._producer.init(self._progress.topic)
        except InitBlocked as problem:
            return Blocked(f"{problem}; {self.unhealthy()}")
        return None

    def discard(self) -> None:
        """Give the producer up; the next one's `init` ends its transaction."""
        if self._producer is not None:
            self._producer.discard()

    def has_ended(self, lane: int) -> bool:
        """Whether the last transaction of a lane that we left is known to have ended."""
        producer = self._make(lane, {}, brief=True)
        try:
            producer.init(self._progress.topic)
        except (ProducerProblem, Trouble):
            # Whatever it is: an attempt that ended for it would lose its claim while the lane is blocked.
            return False
        finally:
            producer.discard()
        return True

    def write_claim(self) -> list[Undelivered]:
        """Commit our claim to the lane, and return nothing; or return why the topic did not take it."""
        record = self._progress.record(b"", self.claim)
        self.producer.begin()
        self.producer.produce([(0, record)])
        undelivered = self.producer.flush()
        if not undelivered:
            self.producer.commit()
            self.claimed = record
        return undelivered

    def reduce_batches(self) -> None:
        """Have the next producer send smaller batches."""
        self._reduced = max(_LEAST_BATCH_BYTES, (self._reduced or self._batch_bytes) // 2)

    def unhealthy(self) -> str:
        """Name the partitions that may keep a transaction from ending."""
        try:
            found = self._admin.unhealthy()
        except KafkaException as error:
            return f"the cluster did not say which partitions are unhealthy: {error.args[0].str()}"
        if not found:
            return "all partitions of the cluster have their leaders and replicas"
        return f"partitions without a leader or a replica: {', '.join(found[:_NAMED])}, {len(found)} in all"
