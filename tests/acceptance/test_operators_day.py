"""The table in docs/operations.md: what an operator sees of a relay in its log, pages and exit codes."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.in_process import thresher
from tests.processes import environment, eventually, open_directory
from tests.service.scraping import Scraper
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.outbox import Message, Outbox, create_schema

_PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_HEADING = "## An operator's day"
# Seen: 20 s for the start of a process.
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.25
_TOPIC, _ROLE, _PASSWORD = "orders", "relay", "rye"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSnapshot:
    """A row of the table: an event, and its effects on log, pages and exit code. An empty cell is not checked."""

    happens: str
    log: Sequence[str]
    ready: str
    status: Sequence[str]
    metrics: Sequence[str]
    exit_code: str


def table() -> list[ServiceSnapshot]:
    lines = iter(_PAGE.read_text().partition(_HEADING)[2].splitlines())
    rows = [line for line in lines if line.startswith("|")][2:]
    ends = next(place for place, line in enumerate([*rows, ""]) if line.count("|") != 7)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[:ends]]
    return [
        ServiceSnapshot(
            happens=happens,
            log=quoted(log),
            ready=ready,
            status=quoted(status),
            metrics=quoted(metrics),
            exit_code=code,
        )
        for happens, log, ready, status, metrics, code in cells
    ]


def quoted(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


class Seen:
    """A process as an operator sees it."""

    def __init__(self, file: Path, log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "thresher", "run", "-c", str(file)], env=environment(), stdout=out, stderr=out
            )
        # The length of the log before this moment.
        self._told = 0

    @property
    def log(self) -> str:
        """The log since the last moment, as one line, because long lines may be wrapped."""
        return " ".join(self._log.read_text()[self._told :].split())

    def forget(self) -> None:
        self._told = len(self._log.read_text())

    def pages(self) -> Scraper:
        found = re.search("status at http://([^/]+)/status", self._log.read_text())
        assert found, "the log does not name the status page yet"
        return Scraper(found[1])

    def shows(self, snapshot: ServiceSnapshot) -> list[str]:
        """Return the effects of a moment that are not seen yet."""
        missing = [f"log: {text}" for text in snapshot.log if text not in self.log]
        if snapshot.exit_code:
            return missing if self.process.poll() is not None else [*missing, "it has not ended"]
        if snapshot.ready:
            pages = self.pages()
            code, answer = pages.probe("/readyz")
            reasons = quoted(snapshot.ready)
            if str(code) != snapshot.ready[:3] or (reasons and answer["reason"] not in reasons):
                missing.append(f"/readyz: {code} {answer}")
            status = json.loads(pages.get("/status")[1])
            metrics = {name: value for (name, _), value in pages.samples().items()}
            missing += [f"/status: {each}, not {status}" for each in snapshot.status if not says(status, each)]
            for each in snapshot.metrics:
                name, wanted = each.split()
                if metrics.get(name) != float(wanted):
                    missing.append(f"/metrics: {each}, not {metrics.get(name)}")
        return missing


def says(status: dict[str, Any], text: str) -> bool:
    key, wanted = text.split()
    return json.dumps(status.get(key)).strip('"') == wanted


class Day:
    """The servers, the processes, and the events of the table. A context manager."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self._stack, self._directory = stack, directory
        self._processes: list[Seen] = []
        self._login = psycopg.conninfo.make_conninfo(stack.postgres.dsn(), user=_ROLE, password=_PASSWORD)
        with self._database() as connection:
            create_schema(connection, TableName(table="outbox"))
            connection.execute(f"CREATE ROLE {_ROLE} LOGIN PASSWORD '{_PASSWORD}'")
            connection.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {_ROLE}")
            connection.execute(f"GRANT ALL ON outbox TO {_ROLE}")

    @property
    def moments(self) -> dict[str, Callable[[], Seen]]:
        """By event: the function that causes it, and returns the process whose log and pages show it."""
        return {
            "it starts": self._start,
            "its database is away": lambda: self._first(self._stack.postgres.server.stop),
            "its database is back": lambda: self._first(self._stack.postgres.start),
            "its broker is away": lambda: self._first(self._broker_goes),
            "its broker is back": lambda: self._first(self._stack.kafka.start),
            "a row can never be sent": lambda: self._first(self._write_poison),
            "that row is mended, and replayed": lambda: self._first(self._mend),
            "a second process starts": self._start,
            "the first one is told to stop": lambda: self._first(
                lambda: self._processes[0].process.send_signal(signal.SIGTERM)
            ),
            "the second one takes over": lambda: self._processes[1],
            "a right is taken from its role": self._revoke,
            "it is started with a mistake in its file": lambda: self._start(shardz=2),
        }

    def _first(self, act: Callable[[], object]) -> Seen:
        act()
        return self._processes[0]

    def _start(self, **more: Any) -> Seen:
        number = len(self._processes)
        file = self._directory / f"relay-{number}.yaml"
        keys = {
            "name": "orders", "data_source": self._login, "status": "127.0.0.1:0", "lease_seconds": 2, "shards": 1,
            "kafka": {"bootstrap.servers": self._stack.kafka.bootstrap}, **more,
        }  # fmt: skip
        file.write_text(json.dumps(keys))
        self._processes.append(Seen(file, self._directory / f"relay-{number}.log"))
        return self._processes[-1]

    def _broker_goes(self) -> None:
        for server in self._stack.kafka.nodes.values():
            server.stop()

    def _write_poison(self) -> None:
        with self._database() as connection:
            connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('not a topic', 'k')")

    def _mend(self) -> None:
        with self._database() as connection:
            connection.execute("UPDATE outbox_dead SET kafka_topic = %s", [_TOPIC])
        assert thresher(["dead", "replay", "--all", "--ds", self._stack.postgres.dsn()]).returncode == 0

    def _revoke(self) -> Seen:
        with self._database() as connection:
            connection.execute(f"REVOKE ALL ON outbox FROM {_ROLE}")
            connection.execute(f"REASSIGN OWNED BY {_ROLE} TO postgres")
            with connection.transaction():
                Outbox("outbox").stash(connection, Message(topic=_TOPIC, key="k", value="v"))
        return self._processes[1]

    @contextlib.contextmanager
    def _database(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self._stack.postgres.dsn(), autocommit=True) as connection:
            yield connection

    def close(self) -> None:
        for each in self._processes:
            each.process.kill()
            each.process.wait()


@pytest.fixture
def day() -> Iterator[Day]:
    directory = open_directory()
    with Stack() as stack, contextlib.closing(Day(stack, directory)) as made:
        yield made
    shutil.rmtree(directory)


@pytest.mark.timeout(900)
def test_every_moment_of_the_operators_day_matches_its_page(day: Day) -> None:
    moments = table()
    assert [snapshot.happens for snapshot in moments] == list(day.moments)
    for snapshot in moments:
        seen = day.moments[snapshot.happens]()
        missing: list[str] = []

        def shown(snapshot: ServiceSnapshot = snapshot, seen: Seen = seen, missing: list[str] = missing) -> bool:
            try:
                missing[:] = seen.shows(snapshot)
            except (AssertionError, OSError) as error:
                missing[:] = [str(error)]
            if missing:
                # A look at all pages costs both processes as much as a few records.
                time.sleep(_LOOK_SECONDS)
            return not missing

        eventually(shown, _PATIENCE_SECONDS, lambda m=snapshot, s=seen, w=missing: f"{m.happens}: {w}\n{s.log}")  # type: ignore[misc]
        if snapshot.exit_code:
            assert seen.process.wait() == int(snapshot.exit_code), seen.log
        seen.forget()
