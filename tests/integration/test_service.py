"""A second workload, which writes numbers to a topic, competes, leads, fails over, reports and stops by `service`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PYTHON_PATH, ROOT, eventually
from tests.service.numbers import WORDING, NumbersWorkload, committed
from tests.service.scraping import Scraper, counters, shown
from thresher.core.errors import Superseded
from thresher.devstack.stack import Stack
from thresher.election.election import competitor
from thresher.election.problem import ElectionMisused
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.election.unopposed import Unopposed
from thresher.service.events.event import Event, LeaderAcquired, LeaderFenced, LeaderRevoked, MeterRead
from thresher.service.problem import ServiceMisused
from thresher.service.service import Service, State
from thresher.spark.session.session import Session
from thresher.testing.leadership import StagedLeadership

# Measured: 2 s until a service counts, 8 s if it has to start Spark.
COUNTED_SECONDS = 60.0
STARTED_SECONDS = 120.0


@pytest.fixture
def workload(stack: Stack, spark: Session, topic_prefix: str) -> NumbersWorkload:
    return NumbersWorkload(f"{topic_prefix}numbers", {"bootstrap.servers": stack.kafka.bootstrap})


def numbers(workload: NumbersWorkload) -> int:
    """Check that each partition has every number once and in order. Return how many there are."""
    found = [committed(workload.kafka, workload.name, shard) for shard in range(workload.shards)]
    for each in found:
        assert each == [str(number) for number in range(len(each))]
    return sum(map(len, found))


def all_count(service: Service) -> bool:
    """Tell whether the driver knows a count of every shard."""
    counts = service.process_counts.shards().values()
    return len(counts) == service.workload.shards and all(each.get("counted") for each in counts)


def probed(page: Scraper, path: str, reason: str) -> None:
    answers: list[Any] = []

    def given() -> bool:
        answers.append(page.probe(path))
        return bool(answers[-1][1]["reason"] == reason)

    eventually(given, COUNTED_SECONDS, lambda: f"{answers[-1:]}")


def test_a_second_workload_leads_reports_and_stops(workload: NumbersWorkload) -> None:
    election = StagedLeadership()
    service = Service(workload, election=lambda: election, metrics_seconds=0.2)
    events: list[Event] = []
    service.on_event(events.append)
    with pytest.raises(ServiceMisused, match="the service was not started"):
        service.wait()
    with shown(service) as page, service:
        probed(page, "/readyz", "standby")
        assert page.probe("/status")[1]["state"] == "standby"
        election.grant()
        probed(page, "/readyz", "counting")
        eventually(lambda: all_count(service), COUNTED_SECONDS)
        assert service.term == str(service.leader_id)
        picture, samples = page.probe("/status")[1], page.samples()
        assert (picture["name"], picture["role"], picture["term"]) == (workload.name, "leading", service.term)
        assert (picture["topic"], picture["writes"]) == (workload.name, True)
        assert [shard["partition"] for shard in picture["shards"]] == [0, 1]
        assert picture["counted"] == sum(shard["counted"] for shard in picture["shards"]) > 0
        assert samples["thresher_leader", ()] == samples["thresher_takeovers_total", ()] == 1
        assert samples["thresher_shard_up", (("shard", "1"),)] == 1
        assert samples["thresher_errors_total", (("kind", "broker_lost"),)] == 0
        assert samples["thresher_counted_numbers_total", (("shard", "0"),)] > 0
        assert page.probe("/healthz") == (200, {"status": "ok", "reason": "alive", "role": "leading"})

        election.fence("the line was cut")
        probed(page, "/readyz", "standby")
        before = numbers(workload)
        election.grant()
        probed(page, "/readyz", "counting")
        eventually(lambda: numbers(workload) > before, COUNTED_SECONDS)
        after = page.samples()
        assert {key: value for key, value in counters(samples).items() if after[key] < value} == {}
        assert after["thresher_fences_total", (("by", "election"),)] == 1
    assert service.wait() is State.STOPPED
    assert numbers(workload) >= service.process_counts.total("counted") > 0
    acquired, fenced, again, revoked = (each for each in events if not isinstance(each, MeterRead))
    assert isinstance(acquired, LeaderAcquired)
    assert isinstance(again, LeaderAcquired)
    assert (fenced, revoked) == (LeaderFenced(reason="the line was cut"), LeaderRevoked())


def test_without_an_election_the_newest_leads(workload: NumbersWorkload) -> None:
    older, newer = (Service(workload, election=Unopposed, alone=True) for _ in range(2))
    older.start()
    eventually(lambda: older.process_counts.total("counted"), COUNTED_SECONDS)
    with newer:
        with pytest.raises(Superseded):
            older.wait(COUNTED_SECONDS)
        eventually(lambda: newer.process_counts.total("counted"), COUNTED_SECONDS)
    assert older.process_counts.driver()["fences.term"] == 1
    numbers(workload)


def test_a_lease_without_a_database_is_refused() -> None:
    with pytest.raises(ElectionMisused):
        competitor(ElectionSettings(kind=ElectionKind.LEASE), name="n", kafka={})


class Counter:
    """The program as a process, with its pages."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.output = process.stdout
        self.page = Scraper(f"127.0.0.1:{int(self.output.readline())}", WORDING.label)

    def status(self) -> dict[str, Any]:
        return self.page.probe("/status")[1]


@contextmanager
def started(directory: Path, number: int, given: dict[str, Any]) -> Iterator[Counter]:
    with (
        (directory / f"log-{number}").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.service.program", json.dumps(given)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": PYTHON_PATH}, stdout=subprocess.PIPE, stderr=log, text=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield Counter(process)
        finally:
            process.kill()


# Both kinds of election are killed in the elections' own tests.
@pytest.mark.parametrize("election", [ElectionKind.NELI, pytest.param(ElectionKind.LEASE, marks=pytest.mark.soak)])
def test_a_standby_leads_when_the_leader_is_killed(
    stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path, election: ElectionKind
) -> None:
    workload = NumbersWorkload(f"{topic_prefix}numbers", {"bootstrap.servers": stack.kafka.bootstrap})
    given = {"name": workload.name, "kafka": workload.kafka, "election": election, "dsn": dsn}
    with ExitStack() as programs:
        both = [programs.enter_context(started(tmp_path, number, given)) for number in range(2)]

        def logs() -> str:
            return "\n".join((tmp_path / f"log-{number}").read_text()[-2000:] for number in range(2))

        def leading() -> list[Counter]:
            return [each for each in both if each.page.probe("/readyz")[1]["reason"] == "counting"]

        eventually(leading, STARTED_SECONDS, logs)
        (leader,) = leading()
        (standby,) = [each for each in both if each is not leader]
        eventually(lambda: leader.status()["counted"] > 0, COUNTED_SECONDS, logs)
        first = leader.status()["term"]
        probed(standby.page, "/readyz", "standby")
        assert standby.page.samples()["thresher_broker_up", ()] == 1
        assert standby.page.samples()["thresher_leader", ()] == 0
        leader.process.send_signal(signal.SIGKILL)
        eventually(lambda: standby.page.probe("/readyz")[1]["reason"] == "counting", STARTED_SECONDS, logs)
        eventually(lambda: standby.status()["counted"] > 0, COUNTED_SECONDS, logs)
        assert (standby.status()["role"], standby.status()["term"] != first) == ("leading", True)
        assert standby.page.samples()["thresher_leader", ()] == 1
        assert standby.page.probe("/healthz")[0] == 200
        standby.process.send_signal(signal.SIGTERM)
        assert standby.process.wait(STARTED_SECONDS) == 0
        # The program has imported no module of the relay.
        assert standby.output.readlines()[-1] == "[]\n"
    assert committed(workload.kafka, workload.terms, 0)[0] == first
    assert numbers(workload) > 0
