"""The relay as a program: `thresher run`, `status`, `dead` and `verify`, as an operator uses them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import thresher_text as thresher
from tests.processes import environment, eventually, signal_a_thread
from tests.relay.relaying import Place
from tests.stranger import attack_program, password_of
from thresher.cli.status import RelayUnreachable, ask
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session

# Only how long a failing test waits. Seen: 6 s until all shards are up.
UP_SECONDS = 120.0


@pytest.fixture
def at(stack: Stack, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


class Running:
    """`thresher run` in a directory, with its log. Its lease is long, so that no stall of the machine loses it."""

    def __init__(self, at: Place, directory: Path, **keys: Any) -> None:
        config = {
            "name": f"{at.prefix}relay", "data_source": at.dsn, "status": "127.0.0.1:0", "lease_seconds": 30,
            "kafka": {"bootstrap.servers": at.stack.kafka.bootstrap}, **keys,
        }  # fmt: skip
        path = directory / "relay.yaml"
        path.write_text(json.dumps(config))  # which is YAML too
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "thresher", "run", "-c", str(path)],
                cwd=directory, env=environment(), stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def status(self) -> str:
        """The address of its status page, from its log: it listens on a free port."""
        found = re.search("status at http://([^/]+)/status", self.log.read_text())
        return found[1] if found else ""

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until a status satisfies the condition, and return it: the next one may differ."""
        picture: dict[str, Any] = {}

        def there() -> object:
            nonlocal picture
            assert self.process.poll() is None, self.log.read_text()
            if at := self.status:
                time.sleep(0.2)  # a page costs the relay some milliseconds
                with contextlib.suppress(RelayUnreachable):
                    picture = ask(at)
            return picture and condition(picture)

        eventually(there, UP_SECONDS, lambda: f"{picture} {self.log.read_text()}")
        return picture


@contextlib.contextmanager
def running(at: Place, directory: Path, **keys: Any) -> Iterator[Running]:
    relay = Running(at, directory, **keys)
    try:
        yield relay
    finally:
        relay.process.kill()
        relay.process.wait()


def test_an_operators_day(at: Place, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def same(batch):\n    print('a word of mine')\n    return batch\n")
    at.stash(*(Message(topic=at.topic, key=f"k{n % 3}", value=str(n)) for n in range(100)))
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('not a topic', 'k', 'v')")
    with running(at, tmp_path, transform="mine:same", log_format="json") as relay:
        at.read(100, seconds=UP_SECONDS)
        picture = relay.until(
            lambda picture: (
                (picture["state"], picture["pending"], picture["dead_rows"]) == ("running", 0, 1)
                and [shard["state"] for shard in picture["shards"]] == ["running"] * 2
                and (picture["relayed"] == 100 or disturbed(picture))
            )
        )
        assert picture["pending_exact"] is True
        # Java's gateway, Spark's two, and the page.
        attack_program(relay.process.pid, ports=4, secrets=[password_of(at.dsn)], meanwhile=lambda: ask(relay.status))
        shown = thresher("status", "--at", relay.status)
        assert shown.returncode == 0, shown.stderr
        assert "relayed 100" in shown.stdout or disturbed(picture)
        assert json.loads(thresher("status", "--at", relay.status, "--json").stdout)["name"] == f"{at.prefix}relay"
        dead(at)
        picture = relay.until(lambda picture: picture["dead_rows"] == 0)
        # The kernel may deliver a signal to any thread.
        signal_a_thread(relay.process.pid, signal.SIGTERM)
        assert relay.process.wait(UP_SECONDS) == 0
        log = relay.log.read_text()
    assert "Traceback" not in log
    said = [(line["logger"], line["message"]) for line in map(json.loads, log.splitlines())]
    assert ("thresher.spark.java", "spark: a word of mine") in said
    assert "101 rows relayed" in log or (disturbed(picture) and "rows relayed" in log)
    nobody = thresher("status", "--at", relay.status)
    assert (nobody.returncode, "nothing runs at" in nobody.stderr) == (1, True)


def disturbed(picture: dict[str, Any]) -> bool:
    """Whether a shard had to recover, for example after a slow commit: its rows count as recovered, not as relayed."""
    return any(shard["restarts"] or shard["recovered"] for shard in picture["shards"])


def dead(at: Place) -> None:
    """List, show, repair, replay and drop dead rows."""
    listed = json.loads(thresher("dead", "list", "--ds", at.dsn, "--json").stdout)
    (row,) = listed["rows"]
    assert (row["topic"], row["kind"], row["attempts"]) == ("not a topic", "malformed", 1)
    assert "cannot be a topic" in thresher("dead", "list", "--ds", at.dsn, columns=300).stdout
    shown = thresher("dead", "show", str(row["id"]), "--ds", at.dsn, "--json")
    assert json.loads(shown.stdout)["value"] == "v"
    nothing = thresher("dead", "replay", "--ds", at.dsn)
    assert (nothing.returncode, "no rows were selected" in nothing.stderr) == (2, True)
    unknown = thresher("dead", "drop", "12345", "--ds", at.dsn)
    assert (unknown.returncode, "no dead rows have the ids 12345" in unknown.stderr) == (2, True)
    again = thresher("dead", "replay", str(row["id"]), "--ds", at.dsn)
    assert "1 row was put back" in again.stdout
    # The row cannot be sent this time either.
    eventually(lambda: [found[1] for found in at.dead()] == ["malformed"], UP_SECONDS)
    at.sql("UPDATE outbox_dead SET kafka_topic = %s", at.topic)
    thresher("dead", "replay", "--all", "--ds", at.dsn)
    assert at.read(101, seconds=UP_SECONDS)[-1].value() is not None
    at.sql("INSERT INTO outbox (kafka_topic) VALUES ('not a topic')")
    eventually(lambda: len(at.dead()) == 1, UP_SECONDS)
    assert "1 row was dropped" in thresher("dead", "drop", "--kind", "malformed", "--yes", "--ds", at.dsn).stdout


def test_a_history_is_verified_end_to_end(at: Place, spark: Session, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    with at.relaying():
        pumped = thresher(
            "pump", "--records", "2000", "--keys", "20", "--topic", at.topic, "--rollback", "0.2", "--varied",
            "0.2", "--history", str(history), "--ds", at.dsn,
        )  # fmt: skip
        assert pumped.returncode == 0, pumped.stderr
        asked = ["verify", "--history", str(history), "--bootstrap", at.stack.kafka.bootstrap, "--ds", at.dsn]
        verified = thresher(*asked, "--wait", "120")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert verified.stdout.splitlines()[-1] == "lost 0, phantom 0, duplicated 0, out of order 0, altered 0"
        told = json.loads(thresher(*asked, "--json").stdout)
        assert (told["ok"], told["objections"], told["longest_silence_seconds"] >= 0) == (True, [], True)
        at.stash(Message(topic=at.topic, key="k", value="not the pump's"))
        # A row arrives once it is relayed and the broker has written the transaction's commit marker.
        eventually(lambda: (found := thresher(*asked)).returncode == 1 and "phantom 1" in found.stdout, UP_SECONDS)


def test_an_impossible_configuration_is_refused_before_anything_starts() -> None:
    answer = thresher("run", "--name", "a b", "--shards", "0", THRESHER_DS="host=x password=hunter2")
    assert answer.returncode == 2
    assert answer.stdout == ""
    for part in ("name:", "shards:", "kafka: it is missing"):
        assert part in answer.stderr
    assert "hunter2" not in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_missing_table_ends_the_relay_with_exit_code_4(at: Place) -> None:
    name, bootstrap = f"{at.prefix}relay", at.stack.kafka.bootstrap
    given = ["run", "--name", name, "--ds", at.dsn, "--bootstrap", bootstrap, "--status", "off"]
    answer = thresher(*given, "--outbox", "nowhere")
    assert (answer.returncode, "there is no table" in answer.stderr) == (4, True)


def test_a_relay_told_to_stop_while_starting_stops(at: Place, tmp_path: Path) -> None:
    for line, number in (("status at", signal.SIGTERM), ("has taken over", signal.SIGINT)):
        with running(at, tmp_path) as relay:
            eventually(lambda line=line, log=relay.log: line in log.read_text(), UP_SECONDS)  # type: ignore[misc]
            os.kill(relay.process.pid, number)
            assert relay.process.wait(UP_SECONDS) == 0, relay.log.read_text()
            assert "Traceback" not in relay.log.read_text()
