"""Hanging steps of a relay: they are reported, no transaction stays open behind them, and none delays a stop."""

import dataclasses
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.mute_proxy import MuteProxy
from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, Place, Relaying
from tests.relay.scraping import Scraper, shown
from thresher.core.errors import Superseded
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionSettings
from thresher.harvest.harvest import Harvest, State
from thresher.kafka.partition_ends import partition_ends
from thresher.outbox import Message
from thresher.relay.leader import watch, workload
from thresher.service.events.event import Event, StepHangs
from thresher.service.health import Role
from thresher.spark.session.session import Session

LEASE = ElectionSettings(lease_seconds=20.0)
WATCH = "thresher.service.watching"
# A step counts as hanging after two seconds, and a hanging shard is killed soon after a stop.
QUICK = dataclasses.replace(POLICY, stall_seconds=2.0, grace_seconds=2.0)


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.fixture
def muted(at: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[MuteProxy]:
    """Yield a proxy to the database that a test can mute. The driver waits only briefly for answers."""
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 2.0)
    monkeypatch.setattr(workload, "_EXPLAIN_SECONDS", 2.0)
    with MuteProxy(at.dsn) as proxy:
        yield proxy


def stash(at: Place, value: int) -> None:
    at.stash(Message(topic=at.topic, key="k", value=str(value)))


def probed(relaying: Relaying, page: Scraper, path: str, code: int, **detail: str) -> dict[str, Any]:
    """Wait until a probe gives this answer, and return that answer."""
    answers: list[dict[str, Any]] = []

    def given() -> bool:
        found, answer = page.probe(path)
        answers.append(answer)
        return found == code and all(text in str(answer.get(name)) for name, text in detail.items())

    relaying.until(given)
    return answers[-1]


def test_a_lock_on_a_sent_row_holds_no_transaction_open(at: Place, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []

    def offsets() -> tuple[int, bool]:
        """Return how many offsets the topic has, and whether a transaction is open on it."""
        ends = partition_ends(at.admin.client, at.topic, range(3)).values()
        return sum(each.high for each in ends), any(each.stable < each.high for each in ends)

    # A first take-over would wait for whoever has locked rows: it could be a dispatcher.
    with at.relaying(shards=1, producer_factory=PRODUCER) as first:
        first.until(lambda: first.relay.term is not None)
    stash(at, 0)
    with psycopg.connect(at.dsn, application_name="somebody") as locker, caplog.at_level(logging.INFO, WATCH):
        locker.execute("SELECT id FROM outbox FOR UPDATE")
        with (
            at.relaying(shards=1, policy=QUICK, announce=events.append, producer_factory=PRODUCER) as relaying,
            shown(relaying.relay) as page,
        ):
            at.read(1)
            stash(at, 1)
            # A record and its transaction marker, and the next transaction's record.
            relaying.until(lambda: offsets()[0] >= 3)
            holder = f"held by backend {locker.info.backend_pid} (user {locker.info.user}, application 'somebody', idle"
            answer = probed(relaying, page, "/readyz", 503, reason="step-hangs", trouble=holder)
            assert "step 'settle' of shard 0 has not ended for" in answer["trouble"]
            assert "query: SELECT id FROM outbox FOR UPDATE" in answer["trouble"]
            assert page.probe("/healthz")[0] == 200
            assert page.total("thresher_step_age_seconds", shard="0") >= 1.0
            assert page.total("thresher_ready") == 0
            told = next(each for each in events if isinstance(each, StepHangs) and each.step == "settle")
            assert told.shard == 0
            assert holder in str(told.why)
            assert holder in caplog.text
            # The settling still hangs, and no open transaction blocks the topic's readers.
            relaying.until(lambda: offsets() == (4, False))
            assert page.probe("/readyz")[1]["reason"] == "step-hangs"
            locker.rollback()
            relaying.until(lambda: at.pending() == 0)
            probed(relaying, page, "/readyz", 200, reason="relaying")
            relaying.until(lambda: "hangs no more" in caplog.text)
            assert not relaying.errors()
            relaying.undisturbed()
    assert [message.value() for message in at.read(2)] == [b"0", b"1"]


def test_a_transform_that_never_returns_fails_liveness(at: Place, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    with (
        at.relaying(shards=1, policy=QUICK, transforms=("tests.relay.transforms:stuck",)) as relaying,
        shown(relaying.relay) as page,
    ):
        at.stash(Message(topic=at.topic, key="k", value=str(stuck)))
        answer = probed(relaying, page, "/healthz", 503, reason="silent-threads")
        assert answer["threads"] == ["transform of shard 0"]
        trouble = probed(relaying, page, "/readyz", 503, reason="step-hangs", trouble="transforms:stuck")["trouble"]
        assert "step 'transform' of shard 0 has not ended for" in trouble
        stuck.unlink()
        relaying.until(lambda: at.pending() == 0)
        probed(relaying, page, "/readyz", 200, reason="relaying")
        assert page.probe("/healthz")[0] == 200


def test_a_silent_database_is_noticed_and_delays_no_stop(
    at: Place, muted: MuteProxy, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, WATCH),
        at.relaying(shards=1, policy=QUICK, dsn=muted.dsn) as relaying,
        shown(relaying.relay) as page,
    ):
        stash(at, 0)
        relaying.until(lambda: at.pending() == 0)
        muted.mute()
        answer = probed(relaying, page, "/readyz", 503, reason="database-lost", trouble="no answer in")
        assert answer["role"] == "leading"
        relaying.until(lambda: "step 'read' of shard 0 has not ended for" in caplog.text)
        assert page.probe("/healthz")[0] == 200
        assert page.total("thresher_step_age_seconds", shard="0") >= 1.0
        muted.unmute()
        stash(at, 1)
        relaying.until(lambda: at.pending() == 0)
        probed(relaying, page, "/readyz", 200, reason="relaying")
        muted.mute()
        relaying.until(lambda: muted.keeps_waiting("/0") and muted.keeps_waiting("/w"))
        relaying.relay.request_stop()
        relaying.ended()
    muted.unmute()
    assert [message.value() for message in at.read(2)] == [b"0", b"1"]


@pytest.mark.parametrize("end", ["request_stop", "kill"])
def test_a_superseded_relay_ends_despite_a_silent_database(at: Place, muted: MuteProxy, end: str) -> None:
    with at.relaying(shards=1, policy=QUICK, dsn=muted.dsn) as relaying:
        relaying.until(lambda: relaying.up)
        # Mute only the session that checks whether a restore has reverted the term.
        muted.mute("/r")
        at.sql("UPDATE thresher_relay SET term = gen_random_uuid()")
        eventually(lambda: muted.keeps_waiting("/r"), 60)
        getattr(relaying.relay, end)()
        assert isinstance(relaying.ended(), Superseded)


@pytest.mark.parametrize("taking_over", [True, False], ids=["taking over", "leading"])
def test_a_harvest_stops_despite_a_silent_database(at: Place, muted: MuteProxy, taking_over: bool) -> None:
    harvest = Harvest(at.settings(shards=1, dsn=muted.dsn), election=LEASE, policy=QUICK)
    if taking_over:
        muted.mute("/d")
        harvest.start()
        eventually(lambda: muted.keeps_waiting("/d"), 60)
        assert harvest.role is Role.TAKING_OVER
    else:
        stash(at, 0)
        harvest.start()
        eventually(lambda: at.pending() == 0, 60)
        muted.mute()
        eventually(lambda: muted.keeps_waiting("/0") and muted.keeps_waiting("/w"), 60)
        assert harvest.role is Role.LEADING
    stopping = threading.Thread(target=harvest.stop, daemon=True)
    stopping.start()
    # Measured: 8 s.
    stopping.join(60)
    assert harvest.state is State.STOPPED
