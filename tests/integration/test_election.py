"""Leaders that are killed, stopped or cut off, and members that join and leave; shared, internal and deleted topics.

A course of events that takes seconds is a scenario. All scenarios run concurrently; each test checks one result.
"""

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.election.candidate import Candidate
from tests.election.watching import SESSION_SECONDS, SOON_SECONDS, Watched, overlaps, well_formed
from tests.faults.guarded import LOGIN, Guard, acl_of
from tests.faults.proxied import PROXIED
from tests.processes import eventually
from thresher.devstack.broker import CLIENTS
from thresher.devstack.stack import Stack
from thresher.election import neli_clients
from thresher.election.leadership import Acquired, Fenced, Revoked
from thresher.election.lease import Lease
from thresher.election.neli import Neli
from thresher.election.neli_clients import consumer_properties
from thresher.election.problem import ElectionRefused, LeaderTopicMissing
from thresher.election.settings import ElectionSettings
from thresher.election.tenure import LATE
from thresher.kafka.admin import Admin
from thresher.testing.proxy import KafkaProxy

# The leader's deadline is shorter than the session timeout: between them, a member that was cut off still owns the
# partition.
HASTY = ElectionSettings(heartbeat_timeout_seconds=1.5, grace_seconds=1.0)
SESSION_LEAST_SECONDS = 12.0
# Long enough that a busy machine loses no leadership, short enough that a test can wait for its end.
STEADY = ElectionSettings(heartbeat_timeout_seconds=8.0)
LEASE_SECONDS = 8.0
# A change that takes longer than AT_ONCE_SECONDS has waited for a session timeout.
PATIENT = ElectionSettings(heartbeat_timeout_seconds=25.0)
AT_ONCE_SECONDS = 20.0
STORM_SECONDS = 10.0
OUTBOX = "outbox"


class Stage:
    """The servers of the scenarios, and their candidates."""

    def __init__(self, stack: Stack, dsn: str, directory: Path) -> None:
        self.stack, self.dsn, self.directory = stack, dsn, directory
        self.kafka = {"bootstrap.servers": stack.kafka.bootstrap}
        self.admin = Admin(stack.kafka.bootstrap)

    def lease(self, name: str, **changes: Any) -> Lease:
        return Lease(dsn=self.dsn, beside=OUTBOX, name=name, **changes)

    def neli(self, name: str, **changes: Any) -> Neli:
        given: dict[str, Any] = {"topic": f"{name}.leader", "group": name, "kafka": self.kafka, **changes}
        return Neli(**given)

    def candidate(self, kind: str, name: str, **settings: Any) -> Candidate:
        return Candidate(
            self.directory / f"{kind}-{name}",
            kind=kind,
            name=name,
            dsn=self.dsn,
            bootstrap=self.stack.kafka.bootstrap,
            settings=settings,
        )

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


Scenario = Callable[[Stage], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def stage(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    dsn = stack.postgres.create_database("elections")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE outbox ()")
    return Stage(stack, dsn, tmp_path_factory.mktemp("elections"))


@pytest.fixture(scope="module")
def played(stage: Stage) -> Iterator[dict[str, Future[Any]]]:
    """Start all scenarios together, and return their futures by name."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(SCENARIOS)) as pool:
        # The broker's least session timeout is too close to the short deadline for a busy machine.
        patch.setattr(neli_clients, "_LEAST_SESSION_SECONDS", SESSION_LEAST_SECONDS)
        yield {name: pool.submit(function, stage) for name, function in SCENARIOS.items()}


Played = dict[str, Future[Any]]


def kill(stage: Stage, kind: str) -> tuple[str | None, int, str | None]:
    """Kill the leader's process, and check that the standby leads.

    Return the leader as the standby saw it before and after, and between them the killed process's id.
    """
    name = f"killed-{kind}"
    standby = stage.lease(name) if kind == "lease" else stage.neli(name)
    with stage.candidate(kind, name) as holder:
        one = holder.leading(SESSION_SECONDS)
        with Watched(standby) as other:
            eventually(lambda: standby.leader, SESSION_SECONDS)
            known = standby.leader
            holder.send(signal.SIGKILL)
            # Measured: 1.4 s with a lease, 6.2 s with a consumer group's session.
            two = other.leading(SESSION_SECONDS)
            after = standby.leader
        assert str(two) != one
        assert not overlaps([holder.claims, other.claims])
    return known, holder.process.pid, after


@scenario
def lease_kill(stage: Stage) -> tuple[str | None, int, str | None]:
    return kill(stage, "lease")


@scenario
def neli_kill(stage: Stage) -> tuple[str | None, int, str | None]:
    return kill(stage, "neli")


def test_a_standby_of_a_lease_knows_who_leads(played: Played) -> None:
    known, pid, after = played["lease_kill"].result()
    assert (known, after) == (f"process {pid} on {socket.gethostname()[:22]}", None)


def test_a_standby_of_a_group_knows_that_another_leads(played: Played) -> None:
    known, _, after = played["neli_kill"].result()
    assert (known, after) == ("another member of the group killed-neli", None)


def test_the_lease_of_a_killed_holder_is_taken_after_expiry(played: Played) -> None:
    played["lease_kill"].result()


def test_another_member_leads_after_a_killed_members_session_timeout(played: Played) -> None:
    played["neli_kill"].result()


def stop(stage: Stage, kind: str) -> None:
    """Stop the leader's process until another leads. It resumes as a standby, and leads again after the other."""
    name = f"stopped-{kind}"
    standby = stage.lease(name, seconds=LEASE_SECONDS) if kind == "lease" else stage.neli(name, settings=STEADY)
    beat = STEADY.heartbeat_timeout_seconds
    with stage.candidate(kind, name, lease_seconds=LEASE_SECONDS, heartbeat_timeout_seconds=beat) as holder:
        one = holder.leading(SESSION_SECONDS)
        with Watched(standby) as other:
            holder.send(signal.SIGSTOP)
            two = other.leading(SESSION_SECONDS)
            holder.send(signal.SIGCONT)
            eventually(lambda: holder.last() == "None", SOON_SECONDS)
            # The resumed process is a standby, and takes nothing from the new leader.
            time.sleep(1.0)
            assert other.leadership.leader_id == two
        three = holder.leading(SESSION_SECONDS)
        assert len({one, str(two), three}) == 3
        claims = holder.claims
        assert [claim.leader_id for claim in claims.found] == [one, three]
        assert not overlaps([claims, other.claims])


@scenario
def lease_stop(stage: Stage) -> None:
    stop(stage, "lease")


@scenario
def neli_stop(stage: Stage) -> None:
    stop(stage, "neli")


@pytest.mark.parametrize("kind", ["lease", "neli"])
def test_a_resumed_leader_knows_that_it_was_replaced(played: Played, kind: str) -> None:
    played[f"{kind}_stop"].result()


# The lease


def hang(stage: Stage, name: str) -> int:
    """Stop the backend process of a lease's session while the session is idle, so that no row stays locked."""
    mine = "SELECT pid FROM pg_stat_activity WHERE application_name ^@ %s ORDER BY backend_start DESC LIMIT 1"
    found: list[int] = []

    def hangs() -> bool:
        for (pid,) in stage.sql(mine, f"thresher-lease/{name}/"):
            os.kill(pid, signal.SIGSTOP)
            stopped(pid)
            if stage.sql("SELECT state FROM pg_stat_activity WHERE pid = %s", pid) == [("idle",)]:
                found.append(pid)
            else:
                os.kill(pid, signal.SIGCONT)
        return bool(found)

    eventually(hangs, SOON_SECONDS)
    return found[0]


def stopped(pid: int) -> None:
    """Wait until the signal has taken effect."""
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", SOON_SECONDS)


@scenario
def lease_hung(stage: Stage) -> None:
    with Watched(stage.lease("hung", seconds=LEASE_SECONDS)) as holder:
        one = holder.leading()
        pid = hang(stage, "hung")
        try:
            # The time without a leader may be too short to be seen: a new leader id shows that the holder stepped down.
            holder.until(lambda it: it.ids()[-1] != one, SESSION_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert Fenced(reason=LATE) in holder.changes


def test_a_holder_whose_database_hangs_steps_down_and_reconnects(played: Played) -> None:
    played["lease_hung"].result()


@scenario
def lease_blocked(stage: Stage) -> None:
    with Watched(stage.lease("blocked", seconds=LEASE_SECONDS)) as holder:
        one = holder.leading()
        with psycopg.connect(stage.dsn) as connection:
            connection.execute("SELECT * FROM thresher_lease WHERE name = 'blocked' FOR UPDATE")
            blocked = time.monotonic()
            holder.until(lambda it: it.changes[-1] == Fenced(reason=LATE))
            # The last renewal was before the lock.
            assert holder.claims.found[-1].until < blocked + LEASE_SECONDS
        assert holder.leading() != one


def test_a_holder_leads_under_another_id_after_a_failed_renewal(played: Played) -> None:
    played["lease_blocked"].result()


@scenario
def lease_set_back(stage: Stage) -> None:
    with Watched(stage.lease("set-back")) as first:
        first.leading()
    # A lease of another holder, taken before the database's clock was set back by an hour.
    stage.sql(
        "UPDATE thresher_lease SET holder = %s, until = clock_timestamp() + '1 hour', span = '1 s' "
        "WHERE name = 'set-back'",
        uuid4(),
    )
    with Watched(stage.lease("set-back")) as second:
        second.leading()


def test_a_lease_extended_by_a_clock_set_back_is_taken(played: Played) -> None:
    played["lease_set_back"].result()


@scenario
def lease_taken(stage: Stage) -> list[Any]:
    with Watched(stage.lease("taken", seconds=LEASE_SECONDS)) as holder:
        one = holder.leading()
        # The database's clock was set forward, and another process has taken the seemingly expired lease.
        stage.sql(
            "UPDATE thresher_lease SET holder = %s, token = token + 1, until = clock_timestamp() + '1 s' "
            "WHERE name = 'taken'",
            uuid4(),
        )
        holder.until(lambda it: it.ids()[-1] != one)
        assert any(isinstance(change, Fenced) for change in holder.changes)
        tokens = stage.sql("SELECT token FROM thresher_lease WHERE name = 'taken'")[0]
        assert holder.leadership.token == tokens[0]  # type: ignore[attr-defined]
    return [*tokens]


def test_a_taken_lease_fences_its_holder_and_raises_the_token(played: Played) -> None:
    assert played["lease_taken"].result() == [3]


@pytest.mark.parametrize(
    ("place", "schema"),
    [
        # A relay places the lease beside its outbox, with or without a schema.
        ({"beside": OUTBOX}, "late"),
        ({"beside": OUTBOX, "schema": "late"}, "late"),
        # A pipeline without an outbox names a schema.
        ({"schema": "aside"}, "aside"),
        ({}, "early"),
    ],
)
def test_a_lease_table_is_in_the_schema_of_its_outbox(
    stage: Stage, dsn: str, place: dict[str, Any], schema: str
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA early; CREATE SCHEMA late; CREATE SCHEMA aside; CREATE TABLE late.outbox ()")
    by_path = psycopg.conninfo.make_conninfo(dsn, options="-c search_path=early,late")
    for _ in range(2):
        # The second holder finds the first one's table.
        with Watched(Lease(dsn=by_path, name="placed", **place)) as holder:
            holder.leading()
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'thresher_lease'").fetchall()
        assert tables == [(schema,)]
        query = f"SELECT name, token FROM {schema}.thresher_lease"
        assert connection.execute(query.encode()).fetchall() == [("placed", 2)]


def test_a_lease_beside_a_missing_outbox_is_an_error(stage: Stage) -> None:
    lease = Lease(dsn=stage.dsn, beside="nowhere", name="nobody")
    lease.start()
    with pytest.raises(ElectionRefused, match="no table"):
        lease.wait(SOON_SECONDS)
    lease.stop()


def test_a_missing_database_is_an_error_without_the_password(stage: Stage) -> None:
    lease = Lease(
        dsn=psycopg.conninfo.make_conninfo(stage.dsn, dbname="not_there", password="s3cret"),
        beside=OUTBOX, name="n", grace_seconds=1.0,
    )  # fmt: skip
    lease.start()
    with pytest.raises(ElectionRefused) as raised:
        lease.wait(SOON_SECONDS)
    assert "s3cret" not in str(raised.value)
    lease.stop()


# NELI


@scenario
def neli_cut(stage: Stage) -> None:
    port = stage.stack.kafka.options.listeners[0].advertised_ports[0]
    with KafkaProxy(stage.stack.kafka.bootstrap_of(PROXIED), port=port) as proxy:
        behind = {"bootstrap.servers": proxy.address}
        with (
            Watched(stage.neli("cut", kafka=behind, settings=HASTY)) as cut,
            Watched(stage.neli("replaced", kafka=behind, settings=HASTY)) as replaced,
        ):
            one, two = cut.leading(), replaced.leading()
            with Watched(stage.neli("replaced", settings=PATIENT)) as other:
                proxy.pause()
                try:
                    # The leaders are past their deadlines, long before their sessions time out.
                    for each in (cut, replaced):
                        each.until(lambda it: it.changes[-1] == Fenced(reason=LATE))
                finally:
                    proxy.resume()
                # Both members still own their partition.
                assert cut.leading() != one
                assert replaced.leading() != two
                assert not other.changes

                proxy.pause()
                try:
                    other.leading(SESSION_SECONDS)
                finally:
                    proxy.resume()
                # `replaced` no longer owns the partition, and joins as a standby.
                time.sleep(1.0)
                assert not replaced.leads
                assert other.leads
            replaced.leading(SESSION_SECONDS)
            cut.leading(SESSION_SECONDS)
        assert not overlaps([replaced.claims, other.claims])


def test_a_leader_that_was_cut_off_resumes_or_rejoins(played: Played) -> None:
    played["neli_cut"].result()


@scenario
def neli_storm(stage: Stage) -> tuple[int, int]:
    over = threading.Event()
    joined: list[float] = []

    def bare() -> None:
        """Join and leave repeatedly, as a plain consumer without an election."""
        while not over.is_set():
            member = Consumer(consumer_properties(stage.kafka, "storm", ElectionSettings()))
            member.subscribe(["storm.leader"])
            while not member.memberid() and not over.is_set():
                member.consume(1, 0.02)
            # It leaves while it joins. The client of a member without partitions would close without leaving, and the
            # group would wait for the end of its session.
            joined.append(time.monotonic())
            member.close()
            over.wait(random.uniform(0.6, 1.4))

    with contextlib.ExitStack() as open_:
        watched = [open_.enter_context(Watched(stage.neli("storm"))) for _ in range(3)]
        eventually(lambda: any(each.leads for each in watched), SOON_SECONDS)
        with ThreadPoolExecutor(1) as pool:
            storm = pool.submit(bare)
            time.sleep(STORM_SECONDS)
            over.set()
        storm.result()
        eventually(lambda: sum(each.leads for each in watched) == 1, SESSION_SECONDS)
    assert not overlaps(each.claims for each in watched)
    return len(joined), sum(isinstance(change, Acquired) for each in watched for change in each.changes)


def test_members_joining_and_leaving_never_make_two_leaders(played: Played) -> None:
    joined, leaderships = played["neli_storm"].result()
    assert joined >= 2
    # Measured: 7 joins and one leadership throughout, because assignment is sticky; without that, 5 leaderships and
    # more. A stall of the machine may end one.
    assert 1 <= leaderships <= 3


@scenario
def neli_deleted(stage: Stage) -> None:
    def topic_id() -> str | None:
        found = stage.admin.topic("deleted.leader")
        return None if found is None else found.topic_id

    with (
        Watched(stage.neli("deleted", settings=HASTY)) as one,
        Watched(stage.neli("deleted", settings=HASTY)) as other,
    ):
        one.until(lambda _: one.leads or other.leads)
        before = topic_id()
        stage.admin.delete_topics(["deleted.leader"])
        eventually(lambda: topic_id() not in {before, None}, SESSION_SECONDS)
        remade = time.monotonic()

        def lasts(_: Watched) -> bool:
            claims = (*one.claims.found, *other.claims.found)
            lengths = [each.until - max(each.since, remade) for each in claims]
            return max(lengths) > 1.2 * HASTY.heartbeat_timeout_seconds

        # Longer than a leader lasts without confirmed heartbeats. One leader may last if the topic returns quickly.
        one.until(lasts, 2 * SESSION_SECONDS)
    assert not overlaps([one.claims, other.claims])


def test_a_deleted_leader_topic_is_recreated_and_has_a_leader(played: Played) -> None:
    played["neli_deleted"].result()


@scenario
def neli_replaced_topic(stage: Stage) -> None:
    """The topic is deleted and recreated at once: the client may not even notice the new topic id."""
    with Watched(stage.neli("renewed", settings=HASTY)) as one:
        one.leading()
        stage.admin.delete_topics(["renewed.leader"])
        with contextlib.suppress(Exception):
            stage.admin.create_topic("renewed.leader")
        # By then every heartbeat from before has expired.
        time.sleep(2 * HASTY.heartbeat_timeout_seconds)
        one.leading(SESSION_SECONDS)


def test_a_recreated_leader_topic_keeps_working(played: Played) -> None:
    played["neli_replaced_topic"].result()


@scenario
def neli_shared(stage: Stage) -> None:
    stage.admin.create_topic("shared", partitions=5, config={"cleanup.policy": "compact"})
    producer = Producer(stage.kafka)
    with contextlib.ExitStack() as open_:
        groups = {
            group: [
                open_.enter_context(Watched(stage.neli(group, topic="shared", settings=STEADY))) for _ in range(members)
            ]
            for group, members in (("sales", 2), ("stock", 1))
        }

        def decided() -> bool:
            return all(sum(each.leads for each in members) == 1 for members in groups.values())

        eventually(decided, SOON_SECONDS)
        # Longer than a leader lasts without heartbeats.
        over = time.monotonic() + 1.5 * STEADY.heartbeat_timeout_seconds
        number = 0
        while time.monotonic() < over:
            number += 1
            # The heartbeat of a Go program, and a malformed record.
            producer.produce("shared", b'{"leader": "somebody"}', b"heartbeat", 0)
            producer.produce("shared", b"\xff" * number, b"thresher.neli:sales", number % 5)
            producer.flush(10)
            time.sleep(0.05)
        eventually(decided, SOON_SECONDS)
        for members in groups.values():
            assert not overlaps(each.claims for each in members)
            assert not any(isinstance(change, Fenced) for each in members for change in each.changes)


def test_applications_sharing_a_leader_topic_have_one_leader_each(played: Played) -> None:
    played["neli_shared"].result()


@scenario
def neli_internal(stage: Stage) -> None:
    with Watched(stage.neli("internal", topic="__consumer_offsets", settings=STEADY)) as one:
        one.leading()
        time.sleep(1.5 * STEADY.heartbeat_timeout_seconds)
        assert one.leads
        assert len(one.changes) == 1
        with Watched(stage.neli("internal", topic="__consumer_offsets", settings=STEADY)) as other:
            one.leadership.stop()
            other.leading()
    well_formed(one.changes)


def test_an_internal_leader_topic_works_without_our_heartbeats(played: Played) -> None:
    played["neli_internal"].result()


@scenario
def neli_read_only(stage: Stage) -> None:
    stage.admin.create_topic("read-only")
    guard = Guard(stage.stack.kafka.bootstrap)
    for kind, name in ((ResourceType.TOPIC, "read-only"), (ResourceType.GROUP, "readers")):
        guard.bind(acl_of(kind, name, ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.ALLOW))
    login = {**LOGIN, "bootstrap.servers": stage.stack.kafka.bootstrap_of(CLIENTS)}
    with Watched(stage.neli("readers", topic="read-only", kafka=login, settings=STEADY)) as one:
        one.leading()
        time.sleep(1.5 * STEADY.heartbeat_timeout_seconds)
        assert one.leads
        assert len(one.changes) == 1

    for group, topic in (("readers", "never-made"), ("others", "read-only")):
        denied = stage.neli(group, topic=topic, kafka=login, settings=HASTY)
        denied.start()
        with pytest.raises((ElectionRefused, LeaderTopicMissing)):
            denied.wait(SESSION_SECONDS)
        denied.stop()
    denied = stage.neli("readers", topic="read-only", kafka={**login, "sasl.password": "wrong"}, settings=HASTY)
    denied.start()
    with pytest.raises(ElectionRefused) as raised:
        denied.wait(SESSION_SECONDS)
    assert "wrong" not in str(raised.value)
    denied.stop()


def test_a_read_only_leader_topic_works_and_denials_are_errors(played: Played) -> None:
    played["neli_read_only"].result()


@scenario
def neli_graceful(stage: Stage) -> float:
    with Watched(stage.neli("graceful", settings=PATIENT)) as one:
        one.leading()
        with Watched(stage.neli("graceful", settings=PATIENT)) as other:
            # A standby that did not leave would hold up the election of the next leader for its session.
            standby = stage.neli("graceful", settings=PATIENT)
            with Watched(standby):
                eventually(lambda: standby.leader, SESSION_SECONDS)
            assert not other.leads
            began = time.monotonic()
            one.leadership.stop()
            other.leading(SESSION_SECONDS)
            took = other.times[-1] - began
    assert one.changes[-1] == Revoked()
    return took


def test_a_member_that_stops_leaves_at_once(played: Played) -> None:
    # Measured: 0.4 s; a session timeout would be 26 s.
    assert played["neli_graceful"].result() < AT_ONCE_SECONDS
