"""The measured programs: the relay, as a user starts it, and goharvest's `reaper` if it is given."""

import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import yaml

from bench.relays.place import Place
from thresher.cli.demo.process import environment_with
from thresher.kafka.admin import Admin
from thresher.relay.settings import Delivery

SHARDS = 2


@contextmanager
def relay(place: Place, *more: str, shards: int = SHARDS, delivery: Delivery = Delivery.EXACTLY_ONCE) -> Iterator[int]:
    """Run a relay while the context lasts, under a new name and with these additional flags; yield its process."""
    command = [
        sys.executable, "-m", "thresher", "run", "--name", place.new_name(),
        "--bootstrap", place.bootstrap, "--shards", str(shards), "--shape", place.shape.value,
        "--delivery", delivery.value, *more,
    ]  # fmt: skip
    for name, value in place.producer.items():
        command += ["--producer", f"{name}={value}"]
    with program(command, signal.SIGTERM, dsn=place.dsn) as process:
        yield process


@contextmanager
def reaper(place: Place, binary: Path) -> Iterator[int]:
    """Run goharvest while the context lasts, with its defaults."""
    # goharvest handles no signal.
    with reaper_command(place, binary) as command, program(command, signal.SIGKILL) as process:
        yield process


@contextmanager
def reaper_command(place: Place, binary: Path) -> Iterator[list[str]]:
    """Yield the command that starts goharvest with its defaults; its competitors have the same."""
    source = psycopg.conninfo.conninfo_to_dict(place.dsn)
    name = f"bench-{secrets.token_hex(4)}"
    Admin(place.bootstrap).create_topic(name)
    harvest: dict[str, Any] = {
        "baseKafkaConfig": {"bootstrap.servers": place.bootstrap},
        "leaderTopic": name,
        "leaderGroupID": name,
        "dataSource": " ".join(f"{key}={value}" for key, value in {**source, "sslmode": "disable"}.items()),
        "outboxTable": "outbox",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"harvest": harvest, "logging": {"level": "Warn"}}, file)
        file.flush()
        yield [str(binary), "-f", file.name]


@contextmanager
def program(command: list[str], ending: signal.Signals, *, dsn: str | None = None) -> Iterator[int]:
    """Run a program while the context lasts, and end it by a signal; yield its process. Raises if it ended before.

    `dsn` is the database of a program of ours.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env=None if dsn is None else environment_with(dsn)
        )
        try:
            yield process.pid
        finally:
            early = process.poll()
            process.send_signal(ending)
            process.wait(60)
            if early is not None:
                said.seek(0)
                raise RuntimeError(
                    f"{command[0]} ended early ({early}): {said.read()[-2000:].decode(errors='replace')}"
                )
