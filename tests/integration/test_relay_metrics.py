"""A relay's metrics for Prometheus and its probes, on real servers and a real Spark."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place, Relaying
from tests.relay.scraping import Process, Samples, Scraper, counters, shown
from thresher.core.errors import Superseded
from thresher.db import statement
from thresher.delivery.names import progress_topic, transactional_id
from thresher.devstack.stack import Stack
from thresher.kafka.transactional import TransactionalProducer
from thresher.outbox import Message
from thresher.relay.leader.watch import RelayWatch
from thresher.relay.report.metrics import ARCHIVE_FAMILIES, FAMILIES
from thresher.service.health import Role
from thresher.service.process_counts import ProcessCounts
from thresher.spark.problem import EngineProblem
from thresher.spark.session.session import Session


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def total(samples: Samples, name: str) -> float:
    return sum(value for (each, _), value in samples.items() if each == name)


def nothing_went_back(before: Samples, after: Samples) -> None:
    lower = {key: (value, after.get(key)) for key, value in counters(before).items() if after.get(key, -1.0) < value}
    assert not lower


def readiness(relaying: Relaying, page: Scraper, reason: str) -> tuple[int, dict[str, Any]]:
    """Wait until `/readyz` answers with a reason, and return that answer: the next may differ."""
    answers: list[tuple[int, dict[str, Any]]] = []

    def given() -> bool:
        answers.append(page.probe("/readyz"))
        return bool(answers[-1][1]["reason"] == reason)

    relaying.until(given)
    return answers[-1]


def scraped(relaying: Relaying, page: Scraper, condition: Callable[[Samples], object]) -> Samples:
    """Wait until a scrape meets the condition, and return that scrape."""
    found: list[Samples] = []

    def met() -> object:
        found.append(page.samples())
        return condition(found[-1])

    relaying.until(met)
    return found[-1]


def test_a_scrape_shows_exact_counts(at: Place) -> None:
    messages = [
        Message(topic=at.topic, key=f"k{n % 50}", value="x" * (n % 40), headers=[("n", str(n))]) for n in range(2000)
    ]
    at.stash(*messages)
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('not a topic', 'k', 'v')")
    size = sum(len(f"k{n % 50}") + n % 40 + 1 + len(str(n)) for n in range(2000))

    def all_done(samples: Samples) -> bool:
        # Figures from the database may be half a second old, and are missing when the database answers slowly.
        answered = samples["thresher_ready", ()] == total(samples, "thresher_database_up") == 1
        looked = total(samples, "thresher_dead_rows") == 1 and not total(samples, "thresher_pending_records")
        # A shard's figures may include a half-counted batch. A settled batch is counted completely.
        batches = total(samples, "thresher_batch_records_count")
        settled = total(samples, "thresher_settle_seconds_count")
        counted = total(samples, "thresher_batch_records_sum") >= 2001 and settled == batches
        return answered and looked and counted

    with at.relaying(shards=3, producer_factory=PRODUCER) as relaying, shown(relaying.relay) as page:
        assert page.probe("/healthz")[0] == 200
        answer = readiness(relaying, page, "relaying")
        assert answer == (200, {"status": "ok", "reason": "relaying", "role": "leading"})
        samples, picture = scraped(relaying, page, all_done), page.probe("/status")[1]
    assert total(samples, "thresher_relayed_records_total") == 2000
    assert {name for name, _ in samples} == {
        each
        for family in FAMILIES
        # Only relays that archive or lock topics show these.
        if family not in ARCHIVE_FAMILIES and "topic" not in family.labels
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
    # On a busy machine a new topic may have no leader yet. No other kind of error is allowed.
    assert total(samples, "thresher_shard_restarts_total") <= total(samples, "thresher_errors_total")
    kinds = {dict(labels)["kind"] for (name, labels), met in samples.items() if name == "thresher_errors_total" and met}
    assert kinds <= {"broker_lost", "kafka", "tail_unread"}
    # Every row counts in a batch, every sent row has an age, every batch has a duration.
    assert samples["thresher_batch_records_sum", ()] == 2001
    assert samples["thresher_end_to_end_seconds_count", ()] == 2000
    assert samples["thresher_publish_seconds_count", ()] == samples["thresher_batch_records_count", ()]
    # The unit is seconds.
    assert 0 < samples["thresher_publish_seconds_sum", ()] < 300
    assert 0 < samples["thresher_end_to_end_seconds_sum", ()] < 2000 * 300
    assert picture["relayed"] == 2000
    assert (picture["role"], picture["state"]) == ("leading", "running")


def test_counters_and_probes_survive_a_killed_shard_and_lost_database(at: Place, stack: Stack, dsn: str) -> None:
    at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(100)))
    database = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])

    def let_in(wanted: bool) -> None:
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS {wanted}".encode())
            if not wanted:
                ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                connection.execute(ended, [database])

    given: dict[str, Any] = {"transforms": ("tests.relay.transforms:only_even",), "producer_factory": PRODUCER}
    with at.relaying(**given) as relaying, shown(relaying.relay) as page:
        relaying.until(lambda: page.total("thresher_relayed_records_total") == 50)
        relaying.until(lambda: page.total("thresher_filtered_records_total") == 50)
        readiness(relaying, page, "relaying")
        before = page.samples()
        restarts = total(before, "thresher_shard_restarts_total")
        os.kill(relaying.pid(0), signal.SIGKILL)
        relaying.until(lambda: page.total("thresher_shard_restarts_total") > restarts)
        readiness(relaying, page, "relaying")
        after = page.samples()
        nothing_went_back(before, after)
        let_in(False)
        try:
            code, answer = readiness(relaying, page, "database-lost")
            assert (code, answer["role"], "the database failed" in answer["trouble"]) == (503, "leading", True)
            # A restart of the relay would not bring the database back.
            assert page.probe("/healthz")[0] == 200
            oldest = ("thresher_oldest_pending_age_seconds", ())
            # Figures of the outbox may be half a second old.
            lost = scraped(
                relaying, page, lambda samples: total(samples, "thresher_database_up") == 0 and oldest not in samples
            )
            assert lost["thresher_ready", ()] == 0
            assert page.total("thresher_errors_total", kind="database_lost") > 0
            nothing_went_back(after, lost)
        finally:
            let_in(True)
        readiness(relaying, page, "relaying")
        at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(10)))
        relaying.until(lambda: page.total("thresher_relayed_records_total") == 55)
        nothing_went_back(lost, page.samples())


def test_counters_continue_in_a_processs_second_leadership(at: Place) -> None:
    process_counts = ProcessCounts()

    def leading() -> Relaying:
        return Relaying(at.settings(producer_factory=PRODUCER), process_counts=process_counts, policy=POLICY)

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


def test_a_fenced_producer_is_counted(at: Place) -> None:
    settings = at.settings(shards=1)
    with at.relaying(shards=1) as relaying, shown(relaying.relay) as page:
        readiness(relaying, page, "relaying")
        stranger = TransactionalProducer(transactional_id(settings.name, 0), settings.kafka)
        stranger.init(progress_topic(settings.name))
        at.stash(Message(topic=at.topic, key="k", value="v"))
        relaying.until(lambda: page.total("thresher_fences_total", by="broker") > 0)
        # The shard recovers, because the term is still its own.
        relaying.until(lambda: at.pending() == 0)
        stranger.discard()


def test_a_relay_whose_watch_breaks_ends(at: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, check_row = threading.Event(), RelayWatch.check_row

    def broken(watch: RelayWatch) -> None:
        if breaks.is_set():
            raise LookupError("a bug")
        check_row(watch)

    monkeypatch.setattr(RelayWatch, "check_row", broken)
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.relay.role is Role.LEADING)
        breaks.set()
        error = relaying.ended()
    assert (type(error), "watch broke" in str(error)) == (EngineProblem, True)
    assert relaying.relay.process_counts.driver()["errors.unexpected"] == 1


def test_the_session_for_scrapes_ends_with_its_term(at: Place) -> None:
    with psycopg.connect(at.dsn) as connection:
        connection.execute(statement("outbox_dead_create", at.table))

    def sessions() -> list[str]:
        query = "SELECT application_name FROM pg_stat_activity WHERE datname = %s AND application_name LIKE %s"
        found = at.sql(query, psycopg.conninfo.conninfo_to_dict(at.dsn)["dbname"], "%/s")
        return [name for (name,) in found]

    process = Process(settings=at.settings(), role=Role.LEADING, term="first")
    with shown(process) as page:

        def looked() -> bool:
            return ("thresher_dead_rows", ()) in page.samples()

        eventually(looked, RELAYED_SECONDS)
        (first,) = sessions()
        # As a take-over ends sessions of older terms.
        at.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", first)
        process.term = "second"
        eventually(lambda: looked() and sessions() not in ([], [first]), RELAYED_SECONDS)
        process.role = Role.STANDBY
        eventually(lambda: sessions() == [], RELAYED_SECONDS)
        assert page.total("thresher_ready") == 1
        assert sessions() == []
