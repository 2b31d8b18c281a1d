"""The scene of a run with faults: servers behind proxies, a load, and the program under test. A context manager."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Mapping
from typing import Any, Generic, Self, TypeVar

from tests.faults import drift
from tests.faults.proxied import proxies_of
from tests.faults.subject import Subject
from tests.processes import open_directory
from thresher.devstack import ports
from thresher.devstack.stack import Stack

# A driver that is told to stop waits 30 s for its shards, and has 20 s more.
END_SECONDS = 120.0


S = TypeVar("S", bound=Subject)


class Scene(Generic[S]):
    """Entering starts the servers and the load. Leaving removes everything."""

    def __init__(self, subject: S, *, nodes: int = 1) -> None:
        self.subject = subject
        self._nodes = nodes
        self.directory = open_directory()
        self.log = self.directory / "program.log"
        self.clock = self.directory / "clock"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            ways = [ports.free_port() for _ in range(self._nodes)]
            self.stack = stack.enter_context(Stack(kafka=self.subject.broker(*ways)))
            self.proxies = stack.enter_context(proxies_of(self.stack.kafka, ways))
            bootstrap = ",".join(proxy.address for proxy in self.proxies.values())
            self.subject.prepare(self.stack, bootstrap, self.directory)
            self.subject.begin_load()
            stack.callback(self.subject.end_load)
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *, variables: Mapping[str, str] | None = None, **settings: Any) -> "subprocess.Popen[bytes]":
        """Start a program; an earlier one goes on."""
        environment = {**(variables or {}), drift.VARIABLE: str(self.clock)}
        self.process = self.subject.program(**settings).changed(variables=environment).start(self.log)
        return self.process

    def stop(self) -> int | None:
        """Stop the program by SIGTERM; return its exit code."""
        if self.process is None:
            return None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def said(self, characters: int = 4000) -> str:
        """Return the end of the programs' log."""
        return self.log.read_text(errors="replace")[-characters:]
