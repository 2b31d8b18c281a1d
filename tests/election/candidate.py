"""A competitor as a program: prints whether it believes to lead, until it is ended.

Takes its election as JSON. A line is `id before after`: the id, or None, and the monotonic times around the look.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from tests.election.watching import Claims
from tests.processes import PYTHON_PATH, ROOT, eventually
from thresher.election.election import competitor
from thresher.election.settings import ElectionKind, ElectionSettings


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    election = competitor(
        ElectionSettings(kind=ElectionKind(given["kind"]), **given.get("settings", {})),
        name=given["name"],
        dsn=given["dsn"],
        beside="outbox",
        kafka={"bootstrap.servers": given["bootstrap"]},
    )
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    election.start()
    while not over.wait(0.01):
        before = time.monotonic()
        leader_id = election.leader_id
        sys.stdout.write(f"{leader_id} {before} {time.monotonic()}\n")
        sys.stdout.flush()
    election.stop()


class Candidate:
    """The program as a test runs it."""

    def __init__(self, directory: Path, **given: Any) -> None:
        self._given = given
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "claims"

    def __enter__(self) -> Self:
        with self._path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.election.candidate", json.dumps(self._given)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": PYTHON_PATH},
                stdout=output,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(30)

    def send(self, number: signal.Signals) -> float:
        """Send a signal, and return the time."""
        now = time.monotonic()
        self.process.send_signal(number)
        return now

    @property
    def claims(self) -> Claims:
        claims = Claims()
        for line in self._path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                leader_id, before, after = line.split()
                claims.add(None if leader_id == "None" else leader_id, float(before), float(after))
        return claims

    def last(self) -> str | None:
        """Return the id of its last complete line."""
        lines = self._path.read_text().splitlines()[:-1]
        return lines[-1].split()[0] if lines else None

    def leading(self, seconds: float) -> str:
        """Wait until the program leads, and return its leader id."""
        found: list[str | None] = []

        def leads() -> bool:
            found.append(self.last())
            return found[-1] not in {None, "None"}

        eventually(leads, seconds)
        return str(found[-1])


if __name__ == "__main__":
    main()
