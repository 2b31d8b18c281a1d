"""Refused credentials and permissions are retried during the grace; after it, the error needs a person."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.election.watching import SESSION_SECONDS, SOON_SECONDS, Watched
from tests.faults.guarded import LOGIN, Guard, acl_of
from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place
from tests.relay.secure import USER, secure
from thresher.devstack.broker import CLIENTS
from thresher.devstack.stack import Stack
from thresher.election.leadership import Acquired, Fenced, Revoked
from thresher.election.lease import Lease
from thresher.election.neli import Neli
from thresher.election.problem import AccessRefused
from thresher.election.settings import ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.outbox import Message
from thresher.service.health import readiness
from thresher.service.pages import StatusPages
from thresher.spark.session.session import Session

PATIENT = ElectionSettings(grace_seconds=600.0)


def test_a_leader_competes_on_after_a_temporary_group_denial(stack: Stack, topic_prefix: str) -> None:
    group, topic = f"{topic_prefix}group", f"{topic_prefix}leader"
    guard = Guard(stack.kafka.bootstrap)
    guard.admit(topic_prefix)
    login = {**LOGIN, "bootstrap.servers": stack.kafka.bootstrap_of(CLIENTS)}
    denial = acl_of(ResourceType.GROUP, group, ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.DENY)
    with Watched(Neli(topic=topic, group=group, kafka=login, settings=PATIENT)) as one:
        first = one.leading(SESSION_SECONDS)
        guard.bind(denial)
        # Its heartbeats are refused: the leader steps down in time, and reports why.
        one.until(lambda it: isinstance(it.changes[-1], Fenced | Revoked), SESSION_SECONDS)
        one.until(lambda it: "uthorization" in str(it.leadership.trouble), SESSION_SECONDS)
        guard.unbind(denial)
        assert one.leading(SESSION_SECONDS) != first
        one.until(lambda it: it.leadership.trouble is None)
        assert one.error is None
        assert sum(isinstance(change, Acquired) for change in one.changes) == 2


def set_password(stack: Stack, user: str, password: str) -> None:
    client = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
    wanted = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
    )
    client.alter_user_scram_credentials([wanted])[user].result()


def test_a_harvest_leads_once_its_credentials_are_accepted(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    place = Place(stack, dsn, topic_prefix)
    place.stash(Message(topic=place.topic, key="k", value=b"v"))
    kafka = secure(stack, **{"sasl.password": "rotated"})
    election = Neli(topic=f"{topic_prefix}leader", group=f"{topic_prefix}group", kafka=kafka, settings=PATIENT)
    settings = place.settings(shards=1, producer_factory=PRODUCER)
    try:
        with (
            Harvest(settings, election=election, policy=POLICY) as harvest,
            closing(StatusPages(harvest)) as board,
        ):
            eventually(lambda: "mend the credentials" in str(election.trouble), RELAYED_SECONDS)
            # Its servers were reached: only the credentials keep the harvest from leading.
            eventually(lambda: readiness(board.process_health()).reason == "election-waits", RELAYED_SECONDS)
            assert not readiness(board.process_health()).good
            assert "mend the credentials" in board.picture()["waiting_for"]
            set_password(stack, USER, "rotated")
            place.read(1)
            eventually(lambda: readiness(board.process_health()).good, RELAYED_SECONDS)
    finally:
        set_password(stack, USER, "alice-secret")


def refused_by_kafka(stack: Stack, dsn: str, grace: float) -> Neli:
    kafka = {**LOGIN, "bootstrap.servers": stack.kafka.bootstrap_of(CLIENTS), "sasl.password": "wr0ng"}
    return Neli(topic="refused", group="refused", kafka=kafka, settings=ElectionSettings(grace_seconds=grace))


def refused_by_database(stack: Stack, dsn: str, grace: float) -> Lease:
    wrong = psycopg.conninfo.make_conninfo(dsn, password="wr0ng")
    return Lease(dsn=wrong, name="refused", grace_seconds=grace)


@pytest.mark.parametrize("refused", [refused_by_kafka, refused_by_database])
def test_credentials_refused_beyond_the_grace_are_an_error(stack: Stack, dsn: str, refused: Callable[..., Any]) -> None:
    leadership = refused(stack, dsn, 3.0)
    began = leadership.now()
    leadership.start()
    with pytest.raises(AccessRefused) as raised:
        leadership.wait(SESSION_SECONDS)
    leadership.stop()
    assert leadership.now() - began >= 3.0
    assert "wr0ng" not in str(raised.value)


def test_a_lease_is_taken_once_its_password_is_accepted(stack: Stack, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS elected")
        connection.execute("CREATE ROLE elected LOGIN PASSWORD 'old'")
        connection.execute("CREATE SCHEMA elected AUTHORIZATION elected")
        try:
            rotated = psycopg.conninfo.make_conninfo(dsn, user="elected", password="new")
            with Watched(Lease(dsn=rotated, schema="elected", name="rotated")) as one:
                one.until(lambda it: "password authentication failed" in str(it.leadership.trouble))
                connection.execute("ALTER ROLE elected PASSWORD 'new'")
                one.leading(SOON_SECONDS)
                one.until(lambda it: it.leadership.trouble is None)
                assert one.error is None
        finally:
            connection.execute("DROP OWNED BY elected")
            connection.execute("DROP ROLE elected")
