"""Fences a pipeline's shards without running them, so that no record is added to the progress that is then read."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from thresher.core.clock import ServerClock
from thresher.delivery.claims import IDS_PER_SHARD, Claim
from thresher.delivery.names import transactional_id
from thresher.delivery.progress_topic.progress_log import P, ProgressLog, ProgressSource
from thresher.delivery.progress_topic.seal import Seal
from thresher.kafka.committed_tail import Opener
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import InitBlocked
from thresher.kafka.transactional import TransactionalProducer


def fenced_log(
    source: ProgressSource[P],
    seal: Seal,
    clock: ServerClock,
    *,
    name: str,
    properties: Mapping[str, Any],
) -> ProgressLog[P]:
    """Fence the producer that may write for a shard, by the id whose claim counts. Return the shard's log.

    `name` is the prefix of the shards' transactional ids, `properties` are those of their producers.
    """
    claim = Claim(id_index=0, claimant=str(uuid.uuid4()))
    for _ in range(IDS_PER_SHARD + 1):
        producer = TransactionalProducer(transactional_id(name, seal.partition, claim.id_index), dict(properties))
        blocked: InitBlocked | None = None
        try:
            try:
                producer.init(seal.topic)
            except InitBlocked as problem:
                # The owner may have left this id for another: the log tells.
                blocked = problem
            producer.now_ms = clock.now_ms()
            # A broker that was cut off may show an old end of the partition: then the claim is not there.
            written = None if blocked is not None else partial(_claimed, producer, claim, seal)
            log = source.log(seal, commit_opener=written)
            try:
                log.last()
            except BaseException:
                log.close()
                raise
        finally:
            producer.discard()
        if blocked is None and log.holder == claim:
            return log
        log.close()
        if blocked is not None and log.holder.id_index == claim.id_index:
            raise blocked
        claim = replace(claim, id_index=log.holder.id_index, number=claim.number + 1)
    raise BrokerLost(f"another relay writes progress for shard {seal.partition} of {name}")


def _claimed(producer: TransactionalProducer, claim: Claim, seal: Seal) -> Opener:
    """Commit a claim to the progress partition."""
    key = claim.encoded()
    record = (seal.topic, b"", key, seal.partition, 0, seal.headers(key, b""))
    producer.begin()
    producer.produce([(0, record)])
    if undelivered := producer.flush():
        raise BrokerLost(f"a record for {undelivered[0].topic} was not delivered: {undelivered[0].why}")
    producer.commit()
    return Opener.of(record)
