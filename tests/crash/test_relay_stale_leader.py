"""A shard recovers while a broker that is cut off still answers as the leader of its progress partition."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.engine.only_shard import only_shard
from tests.faults.cut_off import OTHERS, STALE, CutOffCluster, cut_off_cluster
from tests.processes import eventually
from tests.relay.relaying import Place, taken_over
from thresher.core.errors import Trouble
from thresher.delivery.effects import (
    Begin,
    Commit,
    Control,
    Handlers,
    Holder,
    Init,
    ReadControl,
    ReadHolder,
    ReadProgress,
    WriteClaim,
    WriteProgress,
)
from thresher.delivery.names import progress_topic, transactional_id
from thresher.delivery.progress_topic import progress_log
from thresher.delivery.progress_topic.topic import KEPT
from thresher.delivery.row import RowList
from thresher.kafka import transactional
from thresher.kafka.committed_tail import CommittedTail, TailUnread
from thresher.kafka.producer_problem import ProducerProblem
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.relay.protocol.progress import OutboxProgress, Progress
from thresher.relay.settings import ShardAssignment
from thresher.relay.shard.attempt import Attempt
from thresher.relay.shard.steps import read_ahead_of

logger = logging.getLogger(__name__)

# Seen: 5 s from the cut until the other nodes elect a leader.
MOVED_SECONDS = 60.0
ROUNDS = int(os.environ.get("THRESHER_STALE_ROUNDS", "3"))
# A recovery that ends so has decided nothing: the shard starts over.
REFUSED = (TailUnread, ProducerProblem, Trouble)
# Seen: 2.
ATTEMPTS = 10
_COORDINATING = "__transaction_state"


@contextmanager
def attempt(assignment: ShardAssignment, bootstrap: str) -> Iterator[Handlers]:
    """Yield one attempt at the shard, without Spark."""
    settings = replace(assignment.settings, kafka={"bootstrap.servers": bootstrap})
    assignment = replace(assignment, settings=settings)
    with ExitStack() as resources:
        shard = only_shard(resources, pipeline=settings.name)
        yield Attempt(shard, assignment, read_ahead_of(shard, assignment)).handlers(iter(()))


def recovered(handlers: Handlers, book: OutboxProgress) -> list[Progress]:
    """Recover in the order of the protocol, and return the last progress records."""
    handlers[Init](Init())
    control = handlers[ReadControl](ReadControl())
    assert isinstance(control, Control)
    book.opened(control)
    if not handlers[WriteClaim](WriteClaim()):
        raise TailUnread("the claim is not certain")
    assert handlers[ReadHolder](ReadHolder()) == Holder(id_index=0, ours=True)
    return list(handlers[ReadProgress](ReadProgress()))


def published(assignment: ShardAssignment, bootstrap: str, book: OutboxProgress) -> int:
    """Recover, commit one more progress record, and return its number.

    As a relay does, try again if that was refused. Seen once: a commit was fenced, after an attempt that was given up.
    """
    refusals = 0
    while True:
        with attempt(assignment, bootstrap) as handlers:
            try:
                records = recovered(handlers, book)
                number = records[-1].number + 1 if records else 0
                handlers[Begin](Begin())
                handlers[WriteProgress](WriteProgress(book.record(number, RowList(), 0)))
                assert handlers[Commit](Commit())
            except REFUSED:
                refusals += 1
                if refusals == ATTEMPTS:
                    raise
            else:
                return number


def coordinated_by(cluster: CutOffCluster, name: str) -> int:
    """Return the coordinator of the first shard's transactions, by Java's hash of the id, as Kafka computes it."""
    hashed = 0
    for letter in transactional_id(name, 0):
        hashed = (31 * hashed + ord(letter)) & 0xFFFF_FFFF
    signed = hashed - 2**32 if hashed >= 2**31 else hashed
    return cluster.leader(_COORDINATING, OTHERS[0], abs(signed) % 4)


def placed(cluster: CutOffCluster) -> ShardAssignment:
    """Take over as a relay whose progress partition the first node leads, and whose coordinator is another node."""
    stack = cluster.stack
    at = Place(stack, stack.postgres.create_database("stale"), "stale-")
    kafka = {"bootstrap.servers": cluster.bootstrap(*OTHERS)}
    # The broker creates `__transaction_state` with the first transaction.
    taken_over(at.settings(name="stale-first", kafka=kafka, shards=1))
    with attempt(
        taken_over(at.settings(name="stale-first", kafka=kafka, shards=1)), kafka["bootstrap.servers"]
    ) as any_:
        any_[Init](Init())
    at.sql("DELETE FROM thresher_relay")
    name = next(name for n in range(100) if coordinated_by(cluster, name := f"stale-{n}") in OTHERS)
    wanted = NewTopic(progress_topic(name), num_partitions=1, replica_assignment=[[STALE, *OTHERS]], config=KEPT)
    client = AdminClient({**kafka})
    for future in client.create_topics([wanted]).values():
        future.result()
    eventually(
        lambda: all(cluster.leader(progress_topic(name), node) == STALE for node in (STALE, *OTHERS)), MOVED_SECONDS
    )
    return taken_over(at.settings(name=name, kafka=kafka, shards=1))


@pytest.mark.timeout(900)
def test_progress_read_from_a_stale_leader_is_never_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shorter time-outs: an attempt that asks the stale leader fails sooner.
    monkeypatch.setattr(transactional, "TransactionTimeouts", partial(TransactionTimeouts.within, 4.0))
    monkeypatch.setattr(progress_log, "CommittedTail", partial(CommittedTail, request_seconds=4.0))
    with cut_off_cluster() as cluster:
        assignment = placed(cluster)
        topic = progress_topic(assignment.settings.name)
        good, doubtful = cluster.bootstrap(*OTHERS), cluster.bootstrap(STALE, *OTHERS)
        book = OutboxProgress(outbox_id=assignment.outbox_id, term=assignment.term, shard=0)
        published(assignment, good, book)
        outcomes: Counter[str] = Counter()
        with cluster.cut():
            eventually(lambda: all(cluster.leader(topic, node) in OTHERS for node in OTHERS), MOVED_SECONDS)
            assert cluster.leader(topic, STALE) == STALE, "the cut-off node knows that it no longer leads"
            for _ in range(ROUNDS):
                number = published(assignment, good, book)
                with attempt(assignment, doubtful) as handlers:
                    try:
                        records = recovered(handlers, book)
                    except REFUSED:
                        outcomes["refused"] += 1
                    else:
                        assert [record.number for record in records] == [number]
                        outcomes["right"] += 1
            assert cluster.leader(topic, STALE) == STALE, "the node was not cut off all the time"
        logger.info("%d rounds: %s", ROUNDS, dict(outcomes))
        assert outcomes["right"] > 0, outcomes
        eventually(lambda: cluster.leader(topic, STALE) in OTHERS, MOVED_SECONDS)
        with attempt(assignment, doubtful) as handlers:
            assert [record.number for record in recovered(handlers, book)] == [number]
