"""Stacks that outlive the command that made them: found again by name, stopped in good order, kept or discarded.

A host process (see `host`) owns the servers; while it lives it holds a lock in the stack's directory, and nothing else
decides whether a stack runs. Killed, it takes its servers with it and leaves their data for the next start.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from thresher.devstack import jars
from thresher.devstack.places import make_writable, state_home
from thresher.devstack.problem import StackProblem

_UP_SECONDS = 180.0
_DOWN_SECONDS = 60.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a kept stack was asked to be. Its version and nodes are in its data; its ports may change."""

    kafka_version: str = "4.2.1"
    nodes: int = 1
    postgres_port: int | None = None
    kafka_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where a running stack is reached, and the processes behind it."""

    dsn: str
    bootstrap: str
    processes: dict[str, int]


class KeptStack:
    """A stack by its name."""

    def __init__(self, name: str = "default") -> None:
        if not _NAME.fullmatch(name):
            raise StackProblem(f"stack name {name!r}: up to 40 of the characters a-z, 0-9 and - are allowed")
        self.name = name
        self.directory = state_home() / "stacks" / name
        self.lock = self.directory / "lock"
        self.spec_file = self.directory / "spec.json"
        self.endpoints_file = self.directory / "endpoints.json"
        self.host_log = self.directory / "host.log"

    @property
    def running(self) -> bool:
        """Whether a host holds the stack's lock."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def exists(self) -> bool:
        """Whether there is data of this stack, running or not."""
        return self.spec_file.exists()

    def endpoints(self) -> Endpoints | None:
        """Return where it is reached; None unless it runs and is ready."""
        if not self.running:
            return None
        try:
            return Endpoints(**json.loads(self.endpoints_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def logs(self) -> dict[str, Path]:
        """Return the log files by server."""
        return {path.parent.name: path for path in sorted(self.directory.glob("*/log"))}

    def up(self, spec: Spec, progress: jars.Progress | None = None) -> Endpoints:
        """Start it, or find it running, and return when it is ready. On an error nothing is left running."""
        if not self.running:
            self._admit(spec)
            jars.jars_of(spec.kafka_version, progress)
            make_writable(self.directory, "THRESHER_STATE")
            self.endpoints_file.unlink(missing_ok=True)
            self.spec_file.write_text(json.dumps(asdict(spec)), encoding="utf-8")
            return self._wait_until_ready(self._start_host())
        return self._wait_until_ready(None)

    def down(self, *, discard: bool = False) -> bool:
        """Stop it in good order, and discard its data if asked; False if there was nothing to stop."""
        was_running = self.running
        if was_running:
            host = int(self.lock.read_text(encoding="utf-8"))
            os.kill(host, signal.SIGTERM)
            deadline = time.monotonic() + _DOWN_SECONDS
            while self.running:
                if time.monotonic() > deadline:
                    os.kill(host, signal.SIGKILL)
                time.sleep(0.05)
        if discard:
            shutil.rmtree(self.directory, ignore_errors=True)
        return was_running

    def _admit(self, spec: Spec) -> None:
        jars.read_lock(spec.kafka_version)
        if not self.exists:
            return
        old = Spec(**json.loads(self.spec_file.read_text(encoding="utf-8")))
        if (old.kafka_version, old.nodes) != (spec.kafka_version, spec.nodes):
            raise StackProblem(
                f"stack {self.name!r} holds data of Kafka {old.kafka_version} on {old.nodes} node(s), not of "
                f"{spec.kafka_version} on {spec.nodes}: discard it (stack down --discard) or choose another --name"
            )

    def _start_host(self) -> "subprocess.Popen[bytes]":
        with self.host_log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "thresher.devstack.host", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )

    def _wait_until_ready(self, host: "subprocess.Popen[bytes] | None") -> Endpoints:
        deadline = time.monotonic() + _UP_SECONDS
        while (endpoints := self.endpoints()) is None:
            ended = (host.poll() is not None) if host is not None else not self.running
            if ended or time.monotonic() > deadline:
                reason = self.host_log.read_text(encoding="utf-8", errors="replace").strip() or "no reason given"
                raise StackProblem(f"stack {self.name!r} did not come up: {reason}")
            time.sleep(0.05)
        if host is not None:
            # It goes on without us; nobody will ask for its status, and that is meant.
            host.returncode = 0
        return endpoints
