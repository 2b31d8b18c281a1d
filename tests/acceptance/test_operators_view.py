"""A leader and a standby of one file, as their logs and 'thresher status' show them."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import environment, eventually
from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.outbox import Message

# Only how long a failing test waits. Seen: 8 s until both run.
UP_SECONDS = 120.0


class Scene:
    """Two relays of one file, the leader first; no other process is listed as running."""

    def __init__(self, at: Place, directory: Path) -> None:
        self.at, self.directory, self.file = at, directory, directory / "relay.yaml"
        config = {
            "name": f"{at.prefix}relay", "data_source": at.dsn, "status": "127.0.0.1:0", "lease_seconds": 30,
            "kafka": {"bootstrap.servers": at.stack.kafka.bootstrap},
        }  # fmt: skip
        self.file.write_text(json.dumps(config))
        self.environment = environment(THRESHER_STATE=str(directory / "state"), COLUMNS="80")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Path:
        path = self.directory / f"log-{len(self.processes)}"
        command = [sys.executable, "-m", "thresher", "run", "-c", str(self.file)]
        with path.open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, cwd=self.directory, env=self.environment, stdout=log, stderr=log)
            )
        return path

    def said(self, log: Path, words: str) -> None:
        eventually(lambda: words in log.read_text(), UP_SECONDS, log.read_text)

    def status(self, *arguments: str) -> str:
        answer = subprocess.run(
            [sys.executable, "-m", "thresher", "status", *arguments], cwd=self.directory, env=self.environment,
            capture_output=True, text=True, timeout=UP_SECONDS, check=False,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@pytest.fixture
def scene(stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(Place(stack, dsn, topic_prefix), tmp_path)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


def test_log_and_status_tell_leader_from_standby(scene: Scene) -> None:
    at = scene.at
    at.stash(Message(topic=at.topic, key="k", value="v"))
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('not a topic', 'k', 'v')")
    leader = scene.start()
    scene.said(leader, "; 'thresher dead list --schema public' on its database shows them")
    standby = scene.start()
    host = socket.gethostname()[:22]
    scene.said(standby, f"standing by for {at.prefix}relay: process {scene.processes[0].pid} on {host} leads")
    assert "standing by" not in leader.read_text()
    listed = json.loads(scene.status("--json"))["running"]
    assert {(each["pid"], each["role"]) for each in listed} == {
        (scene.processes[0].pid, "leading"),
        (scene.processes[1].pid, "standby"),
    }
    (second,) = [each for each in listed if each["role"] == "standby"]
    shown = scene.status("--at", second["at"])
    assert " ".join(shown.split()) == (
        f"{at.prefix}relay stands by here: process {scene.processes[0].pid} on {host} leads"
    )
    scene.processes[1].kill()
    scene.processes[1].wait()
    shown = scene.status("-c", "relay.yaml")
    assert f"relay {at.prefix}relay of" in shown
    assert max(map(len, shown.splitlines())) <= 80, shown
    shards = [line for line in shown.splitlines() if line.startswith("│")]
    assert [re.split(r"[│ ]+", line)[1] for line in shards] == ["0", "1"], shown
