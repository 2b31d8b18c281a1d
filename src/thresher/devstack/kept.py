"""Stacks that outlive the command that made them: found again by name, stopped in good order, kept or discarded.

A lock beside the stack's directory says whether it runs, and nothing else does:
1. `up` takes it, checks and prepares everything, starts a host process (see `host`) and hands the lock over to it.
2. The host owns the servers and holds the lock as long as it lives. Killed, it takes its servers with it and leaves
   their data for the next start.
3. `down` tells the host to stop and waits until the lock is free; it discards data only while holding the lock itself.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher.core.places import cache_home, make_writable, state_home
from thresher.devstack import jars
from thresher.devstack.cache import write_whole
from thresher.devstack.problem import BadRequest, StackProblem

_UP_SECONDS = 180.0
_DOWN_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a kept stack was asked to be. Its version and nodes are in its data; its ports may change."""

    kafka_version: str = "4.2.1"
    nodes: int = 1
    postgres_port: int | None = None
    kafka_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports that a stack had when it ran last. They are taken again, as far as they are free."""

    postgres: int
    kafka: tuple[int, ...]


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
            raise BadRequest(f"stack name {name!r}: up to 40 of the characters a-z, 0-9 and - are allowed")
        self.name = name
        self.directory = state_home() / "stacks" / name
        # Beside the directory, so that it outlives a discard.
        self.lock = self.directory.with_name(f"{name}.lock")
        self.spec_file = self.directory / "spec.json"
        self.endpoints_file = self.directory / "endpoints.json"
        self.host_file = self.directory / "host.pid"
        self.host_log = self.directory / "host.log"
        self.ports_file = self.directory / "ports.json"

    @property
    def running(self) -> bool:
        """Whether somebody starts, holds or discards the stack now."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            # Shared: those who only ask do not see each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def exists(self) -> bool:
        """Whether there is data of this stack, running or not."""
        return self.spec_file.exists()

    @property
    def known(self) -> bool:
        """Whether there is or was a stack of this name."""
        return self.lock.exists()

    def endpoints(self) -> Endpoints | None:
        """Return where it is reached; None unless it runs and is ready."""
        if not self.running:
            return None
        content = read_json(self.endpoints_file)
        return None if content is None else Endpoints(**content)

    def last_ports(self) -> Ports | None:
        """Return the ports of its last run; None before the first."""
        content = read_json(self.ports_file)
        return None if content is None else Ports(postgres=content["postgres"], kafka=tuple(content["kafka"]))

    def logs(self) -> dict[str, Path]:
        """Return the log files by server."""
        return {path.parent.name: path for path in sorted(self.directory.glob("*/log"))}

    def up(self, spec: Spec, progress: jars.Progress | None = None) -> Endpoints:
        """Start it, or find it running, and return when it is ready. On an error nothing is left running."""
        jars.read_lock(spec.kafka_version)
        make_writable(self.directory.parent, "THRESHER_STATE")
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline:
            with self._held() as lock:
                if lock is not None:
                    return self._start(spec, lock, progress)
            # Somebody else is at it: theirs is ours as soon as it is ready.
            if (endpoints := self.endpoints()) is not None:
                return endpoints
            time.sleep(_LOOK_SECONDS)
        raise StackProblem(f"stack {self.name!r} is being started or stopped by another command, for too long")

    def down(self, *, discard: bool = False) -> bool:
        """Stop it in good order, and discard its data if asked; False if there was nothing to stop."""
        was_running = self.running
        deadline = time.monotonic() + _DOWN_SECONDS
        told: int | None = None
        while self.directory.parent.is_dir():
            with self._held() as lock:
                if lock is not None:
                    if discard:
                        shutil.rmtree(self.directory, ignore_errors=True)
                    break
            host = read_json(self.host_file)
            if isinstance(host, int) and (host != told or time.monotonic() > deadline):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(host, signal.SIGTERM if host != told else signal.SIGKILL)
                told = host
            time.sleep(_LOOK_SECONDS)
        return was_running

    @contextlib.contextmanager
    def _held(self) -> Iterator[int | None]:
        """Hold the lock, if nobody else does; a process that is given the descriptor goes on holding it."""
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
        finally:
            os.close(descriptor)

    def _start(self, spec: Spec, lock: int, progress: jars.Progress | None) -> Endpoints:
        self._admit(spec)
        jars.jars_of(spec.kafka_version, progress)
        make_writable(self.directory, "THRESHER_STATE")
        for stale in (self.endpoints_file, self.host_file):
            stale.unlink(missing_ok=True)
        write_whole(self.spec_file, json.dumps(asdict(spec)))
        host = self._start_host(lock)
        try:
            return self._wait_until_ready(host)
        except BaseException:
            host.terminate()
            host.wait()
            raise

    def _admit(self, spec: Spec) -> None:
        found = read_json(self.spec_file)
        if found is None:
            return
        old = Spec(**found)
        if (old.kafka_version, old.nodes) != (spec.kafka_version, spec.nodes):
            raise StackProblem(
                f"stack {self.name!r} holds data of Kafka {old.kafka_version} on {old.nodes} node(s), not of "
                f"{spec.kafka_version} on {spec.nodes}: discard it (stack down --discard) or choose another --name"
            )

    def _start_host(self, lock: int) -> "subprocess.Popen[bytes]":
        # It has another working directory: what was relative to ours must not be to its.
        places = {"THRESHER_STATE": str(state_home()), "THRESHER_CACHE": str(cache_home())}
        with self.host_log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "thresher.devstack.host", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **places},
                pass_fds=[lock],
                start_new_session=True,
            )

    def _wait_until_ready(self, host: "subprocess.Popen[bytes]") -> Endpoints:
        deadline = time.monotonic() + _UP_SECONDS
        while (endpoints := self.endpoints()) is None:
            if host.poll() is not None or time.monotonic() > deadline:
                reason = self.host_log.read_text(encoding="utf-8", errors="replace").strip() or "no reason given"
                raise StackProblem(f"stack {self.name!r} did not come up: {reason}")
            time.sleep(_LOOK_SECONDS)
        # It goes on without us; nobody will ask for its status, and that is meant.
        host.returncode = 0
        return endpoints


def running_stacks() -> list[str]:
    """Return the names of the stacks that run and are ready."""
    return [name for name in _names() if KeptStack(name).endpoints() is not None]


def all_stacks() -> list[str]:
    """Return the names of the stacks that run or have data."""
    return [name for name in _names() if KeptStack(name).running or KeptStack(name).exists]


def _names() -> list[str]:
    return sorted(path.stem for path in (state_home() / "stacks").glob("*.lock") if _NAME.fullmatch(path.stem))


def read_json(path: Path) -> Any:
    """Return what a file holds; None where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise StackProblem(f"{path} is damaged: discard the stack (stack down --discard)") from error
