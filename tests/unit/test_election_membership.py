"""Whether a competitor is in its consumer group, by the client's statistics."""

import json
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from tests.processes import eventually
from thresher.election.candidacy import JOINING, Candidacy
from thresher.election.membership import Membership
from thresher.election.neli import Member, Neli
from thresher.election.settings import ElectionSettings
from thresher.kafka.admin import Admin, TopicFacts

SOON_SECONDS = 30.0


def said(state: str, join_state: str) -> str:
    return json.dumps({"cgrp": {"state": state, "join_state": join_state}})


def test_a_member_reports_that_it_has_not_joined_yet() -> None:
    now = [0.0]
    membership = Membership("g", lambda: now[0])
    assert [membership.trouble] == [JOINING]
    now[0] = 16.0
    membership.take_statistics(said("query-coord", "init"))
    assert [membership.trouble] == ["it has not joined the group g"]
    membership.take_statistics(said("up", "steady"))
    assert membership.trouble is None


def test_a_rebalance_is_no_trouble_and_a_lost_coordinator_is() -> None:
    now = [0.0]
    membership = Membership("g", lambda: now[0])
    membership.assigned()
    membership.take_statistics(said("up", "wait-join"))
    now[0] = 15.0
    assert membership.trouble is None
    now[0] = 16.0
    membership.take_statistics(said("wait-coord", "init"))
    assert [membership.trouble] == ["it is out of the group g"]
    membership.assigned()
    assert membership.trouble is None


def test_statistics_of_a_client_without_a_group_are_accepted() -> None:
    membership = Membership("g", lambda: 0.0)
    membership.take_statistics("{}")
    assert membership.trouble is not None


class Answering(Admin):
    """The administration of a cluster with the leader topic."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        pass

    def require_answer(self) -> None: ...

    def topic(self, name: str) -> TopicFacts:
        return TopicFacts(topic_id=name, partitions=1)


def test_a_client_without_a_broker_is_in_no_group() -> None:
    # As if the broker had stopped after the check.
    neli = Neli(topic="t", group="g", kafka={"bootstrap.servers": "127.0.0.1:1"}, admin_of=Answering)
    neli.start()
    eventually(lambda: neli.trouble == JOINING, SOON_SECONDS)
    # The report stays while the client is silent.
    time.sleep(1.0)
    assert neli.trouble == JOINING
    neli.stop()


class Met:
    """An error in the place of a record."""

    def __init__(self, code: int) -> None:
        self._error = KafkaError(code)

    def error(self) -> KafkaError:
        return self._error


class Consumer:
    """A consumer whose events the test controls."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self.properties = properties
        self.comes: list[list[Met]] = []
        self.confirming = True

    def subscribe(self, _: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def consume(self, _count: int, _seconds: float) -> list[Met]:
        return self.comes.pop(0) if self.comes else []

    def assign(self, place: TopicPartition) -> None:
        self.callbacks["on_assign"](self, [place])

    def revoke(self, place: TopicPartition) -> None:
        self.callbacks["on_revoke"](self, [place])

    def commit(self, offsets: list[TopicPartition], **_: Any) -> None:
        if self.confirming:
            self.properties["on_commit"](None, offsets)

    def incremental_assign(self, _: list[TopicPartition]) -> None: ...

    def incremental_unassign(self, _: list[TopicPartition]) -> None: ...


def test_a_refusal_ends_with_its_leadership() -> None:
    made: list[Consumer] = []

    def make(properties: dict[str, Any]) -> Any:
        made.append(Consumer(properties))
        return made[-1]

    candidacy, first = Candidacy(), TopicPartition("t", 0)
    settings = ElectionSettings(consumer_factory=make)
    member = Member(candidacy, "t", "g", {"bootstrap.servers": "127.0.0.1:1"}, settings)
    # Only the coordinator confirms heartbeats.
    member.writable = False
    (consumer,) = made
    consumer.assign(first)
    member.step(0.0)
    assert [candidacy.leader_id] != [None]
    consumer.comes.append([Met(KafkaError.GROUP_AUTHORIZATION_FAILED)])
    assert member.step(0.0) is not None
    consumer.revoke(first)
    assert candidacy.leader_id is None
    assert member.step(0.0) is None
    # The member gets the partition again; the first confirmation is delayed.
    consumer.confirming = False
    consumer.assign(first)
    assert member.step(0.0) is None
