"""Kept stacks: they outlive the command that started them, and have names.

Only a lock beside the stack's directory says whether the stack runs:
1. `up` takes the lock, checks and prepares everything, starts a host process (see `host`), and hands the lock to it.
2. The host owns the servers, and holds the lock as long as it lives. If it is killed, its servers end too, and their
   data stays for the next start.
3. `down` sends SIGTERM to the host, and waits until the lock is free. It discards data only while it holds the lock.
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

from thresher.core.directories import cache_home, make_writable, state_home
from thresher.devstack import jars
from thresher.devstack.cache import open_lock, write_whole
from thresher.devstack.problem import BadRequest, StackProblem

_UP_SECONDS = 180.0
_DOWN_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The request for a kept stack. Version and number of nodes cannot change with existing data; ports can."""

    kafka_version: str = "4.2.1"
    nodes: int = 1
    postgres_port: int | None = None
    kafka_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of a stack's last run, which are used again if they are free."""

    postgres: int
    kafka: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of a running stack, and its process ids."""

    dsn: str
    bootstrap: str
    processes: dict[str, int]


class NamedStack:
    """A stack by its name."""

    def __init__(self, name: str = "default") -> None:
        if not _NAME.fullmatch(name):
            raise BadRequest(f"stack name {name!r}: up to 40 of the characters a-z, 0-9 and - are allowed")
        self.name = name
        self.directory = state_home() / "stacks" / name
        # Beside the directory, so that it stays when the data is discarded.
        self.lock = self.directory.with_name(f"{name}.lock")
        self.spec_file = self.directory / "spec.json"
        self.endpoints_file = self.directory / "endpoints.json"
        self.host_file = self.directory / "host.pid"
        self.host_log = self.directory / "host.log"
        self.ports_file = self.directory / "ports.json"

    @property
    def running(self) -> bool:
        """Whether a process starts, runs or discards the stack now."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            # A shared lock: processes that only check do not block each other.
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
        """Whether a stack of this name exists or has existed."""
        return self.lock.exists()

    def endpoints(self) -> Endpoints | None:
        """Return the addresses; None unless the stack runs and is ready."""
        if not self.running:
            return None
        content = read_json(self.endpoints_file)
        return None if content is None else Endpoints(**content)

    def last_ports(self) -> Ports | None:
        """Return the ports of the last run; None before the first."""
        content = read_json(self.ports_file)
        return None if content is None else Ports(postgres=content["postgres"], kafka=tuple(content["kafka"]))

    def logs(self) -> dict[str, Path]:
        """Return the log files by server."""
        return {path.parent.name: path for path in sorted(self.directory.glob("*/log"))}

    def up(self, spec: Spec, progress: jars.Progress | None = None) -> Endpoints:
        """Start the stack unless it runs, and return when it is ready. After an error nothing is left running."""
        jars.read_lock(spec.kafka_version)
        stacks = make_writable(self.directory.parent, "THRESHER_STATE")
        if stacks.stat().st_uid == os.geteuid():
            # As root, the database's account passes through.
            stacks.chmod(0o711 if os.geteuid() == 0 else 0o700)
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline:
            with self._held() as lock:
                if lock is not None:
                    return self._start(spec, lock, progress)
            # Another process runs or starts the stack: use it as soon as it is ready.
            if (endpoints := self.endpoints()) is not None:
                return endpoints
            time.sleep(_LOOK_SECONDS)
        raise StackProblem(
            f"another command has been starting or stopping stack {self.name!r} for {_UP_SECONDS:.0f} s: see "
            f"{self.host_log}"
        )

    def down(self, *, discard: bool = False) -> bool:
        """Shut the stack down cleanly; with `discard`, remove its data. False if it was not running."""
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
        """Hold the lock if it is free. A process that inherits the descriptor keeps holding it."""
        descriptor = open_lock(self.lock)
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
        # Absolute paths, since the host has another working directory.
        places = {"THRESHER_STATE": str(state_home()), "THRESHER_CACHE": str(cache_home())}
        with self.host_log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "thresher.devstack.host", self.name],
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
                raise StackProblem(f"stack {self.name!r} did not start: {reason}")
            time.sleep(_LOOK_SECONDS)
        # The host outlives us on purpose. This keeps Popen from warning that it still runs.
        host.returncode = 0
        return endpoints


def running_stacks() -> list[str]:
    """Return the names of the stacks that run and are ready."""
    return [name for name in _names() if NamedStack(name).endpoints() is not None]


def all_stacks() -> list[str]:
    """Return the names of the stacks that run or have data."""
    return [name for name in _names() if NamedStack(name).running or NamedStack(name).exists]


def _names() -> list[str]:
    return sorted(path.stem for path in (state_home() / "stacks").glob("*.lock") if _NAME.fullmatch(path.stem))


def read_json(path: Path) -> Any:
    """Return the content of a file; None if it does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise StackProblem(f"{path} is damaged: discard the stack (stack down --discard)") from error
