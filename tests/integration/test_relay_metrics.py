"""What a relay shows to Prometheus and to probes, on real servers and a real Spark."""

import os
import signal

import psycopg
import pytest

from tests.processes import eventually
from tests.relay.relaying import Place, Relaying
from tests.relay.scraping import Process, Samples, counters, shown
from thresher.db import statement
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.health import Role
from thresher.relay.ledger import Ledger
from thresher.relay.metrics import FAMILIES
from thresher.relay.problem import Superseded
from thresher.spark.policy import Policy
from thresher.spark.problem import EngineProblem
from thresher.spark.session import Session


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def total(samples: Samples, name: str) -> float:
    return sum(value for (each, _), value in samples.items() if each == name)


def nothing_went_back(before: Samples, after: Samples) -> None:
    lower = {key: (value, after.get(key)) for key, value in counters(before).items() if after.get(key, -1.0) < value}
    assert not lower


def test_a_scrape_shows_exactly_what_was_done(at: Place) -> None:
    messages = [
        Message(topic=at.topic, key=f"k{n % 50}", value="x" * (n % 40), headers=[("n", str(n))]) for n in range(2000)
    ]
    at.stash(*messages)
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('not a topic', 'k', 'v')")
    size = sum(len(f"k{n % 50}") + n % 40 + 1 + len(str(n)) for n in range(2000))
    with at.relaying(shards=3) as relaying, shown(relaying.relay) as page:
        assert page.probe("/healthz")[0] == 200
        relaying.until(lambda: page.probe("/readyz")[0] == 200)
        assert page.probe("/readyz")[1] == {"status": "ok", "reason": "relaying", "role": "leading"}
        relaying.until(lambda: page.total("thresher_dead_rows") == 1)
        relaying.until(lambda: page.total("thresher_pending_records") == 0)
        # Figures come with a beat.
        relaying.until(lambda: page.total("thresher_relayed_records_total") == 2000)
        batches = page.total("thresher_batch_records_count")
        relaying.until(lambda: page.total("thresher_settle_seconds_count") == batches)
        samples, picture = page.samples(), page.probe("/status")[1]
    assert {name for name, _ in samples} == {
        each
        for family in FAMILIES
        for each in (
            [f"{family.name}_{end}" for end in ("bucket", "count", "sum")]
            if family.kind == "histogram"
            else [family.name]
        )
    }
    assert total(samples, "thresher_relayed_bytes_total") == size
    assert samples["thresher_leader", ()] == samples["thresher_ready", ()] == samples["thresher_database_up", ()] == 1
    assert samples["thresher_takeovers_total", ()] == samples["thresher_pending_exact", ()] == 1
    assert total(samples, "thresher_dead_records_total") == 1
    assert total(samples, "thresher_shard_up") == 3
    assert total(samples, "thresher_shard_restarts_total") == 0
    # On a busy machine a topic that was just made may have no leader yet: no other kind of trouble was met.
    kinds = {dict(labels)["kind"] for (name, labels), met in samples.items() if name == "thresher_errors_total" and met}
    assert kinds <= {"broker_lost", "kafka"}
    # Every row is in a batch, every row that was sent has an age, every batch a time.
    assert samples["thresher_batch_records_sum", ()] == 2001
    assert samples["thresher_end_to_end_seconds_count", ()] == 2000
    assert samples["thresher_publish_seconds_count", ()] == samples["thresher_batch_records_count", ()]
    assert 0 < samples["thresher_publish_seconds_sum", ()] < 60
    assert 0 < samples["thresher_end_to_end_seconds_sum", ()] < 2000 * 60
    assert picture["relayed"] == 2000
    assert (picture["role"], picture["state"]) == ("leading", "running")


def test_counters_and_probes_over_a_killed_shard_and_a_lost_database(at: Place, stack: Stack, dsn: str) -> None:
    at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(100)))
    database = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])

    def let_in(wanted: bool) -> None:
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS {wanted}".encode())
            if not wanted:
                ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                connection.execute(ended, [database])

    transforms = ("tests.relay.transforms:only_even",)
    with at.relaying(transforms=transforms) as relaying, shown(relaying.relay) as page:
        relaying.until(lambda: page.total("thresher_relayed_records_total") == 50)
        assert page.total("thresher_filtered_records_total") == 50
        relaying.until(lambda: page.probe("/readyz")[0] == 200)
        before = page.samples()
        victim = relaying.shards[0].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        relaying.until(lambda: page.total("thresher_shard_restarts_total") == 1)
        relaying.until(lambda: page.probe("/readyz")[0] == 200)
        after = page.samples()
        nothing_went_back(before, after)
        let_in(False)
        try:
            relaying.until(lambda: page.probe("/readyz")[1]["reason"] == "database-lost")
            code, answer = page.probe("/readyz")
            assert (code, answer["role"], "the database failed" in answer["trouble"]) == (503, "leading", True)
            # Killing it would not bring the database back.
            assert page.probe("/healthz")[0] == 200
            # An answer may be half a second old.
            relaying.until(lambda: page.total("thresher_database_up") == 0)
            lost = page.samples()
            assert lost["thresher_ready", ()] == 0
            assert ("thresher_oldest_pending_age_seconds", ()) not in lost
            assert page.total("thresher_errors_total", kind="database_lost") > 0
            nothing_went_back(after, lost)
        finally:
            let_in(True)
        relaying.until(lambda: page.probe("/readyz")[0] == 200)
        at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(10)))
        relaying.until(lambda: page.total("thresher_relayed_records_total") == 55)
        nothing_went_back(lost, page.samples())


def test_a_second_leadership_of_a_process_counts_on_and_a_fence_is_counted_once(at: Place) -> None:
    ledger = Ledger()

    def leading() -> Relaying:
        return Relaying(at.settings(), ledger=ledger, policy=Policy(beat_seconds=0.2))

    at.stash(*(Message(topic=at.topic, key=f"k{n}", value="v") for n in range(20)))
    with leading() as first, shown(first.relay) as page:
        first.until(lambda: page.total("thresher_relayed_records_total") == 20)
        before = page.samples()
        at.sql("UPDATE thresher_relay SET term = gen_random_uuid()")
        assert isinstance(first.ended(), Superseded)
        code, answer = page.probe("/readyz")
        assert (code, answer["reason"], page.probe("/healthz")[0]) == (503, "failed", 200)
        ended = page.samples()
        assert (ended["thresher_leader", ()], ended["thresher_fences_total", (("by", "term"),)]) == (0, 1)
        nothing_went_back(before, ended)
    with leading() as second, shown(second.relay) as page:
        at.stash(*(Message(topic=at.topic, key=f"k{n}", value="v") for n in range(5)))
        second.until(lambda: page.total("thresher_relayed_records_total") == 25)
        nothing_went_back(ended, page.samples())
        assert page.total("thresher_takeovers_total") == 2


def test_a_relay_that_nobody_watches_ends(at: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.relay.role is Role.LEADING)

        def broken(_: object) -> None:
            raise LookupError("a bug")

        monkeypatch.setattr("thresher.relay.relay._Watch.look", broken)
        error = relaying.ended()
    assert (type(error), "watch broke" in str(error)) == (EngineProblem, True)
    assert relaying.relay.ledger.driver()["errors.unexpected"] == 1


def test_a_session_for_scrapes_goes_with_its_term_and_with_the_leadership(at: Place) -> None:
    with psycopg.connect(at.dsn) as connection:
        connection.execute(statement("outbox_dead_create", at.table))

    def sessions() -> list[str]:
        found = at.sql("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE %s", "%/s")
        return [name for (name,) in found]

    process = Process(settings=at.settings(), role=Role.LEADING, term="first")
    with shown(process) as page:
        assert page.total("thresher_database_up") == 1
        (first,) = sessions()
        # As a take-over does with those of older terms.
        at.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", first)
        process.term = "second"
        eventually(lambda: page.total("thresher_database_up") == 1 and sessions() not in ([], [first]), 10)
        process.role = Role.STANDBY
        eventually(lambda: sessions() == [], 10)
        assert page.total("thresher_ready") == 1
        assert sessions() == []
