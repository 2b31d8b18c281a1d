"""One server process under a keeper: started, stopped, killed, paused and started again by the process that owns it.

The server ends with its owner, whatever ends the owner; see `keeper`.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from thresher.devstack.account import Account
from thresher.devstack.problem import StackProblem

_KEEPER = Path(__file__).with_name("keeper.py")
_TAIL_BYTES = 8192


class Server:
    """A server's directory, its log, and its process while it runs.

    `stop_signal` asks it to stop in good order; `end_signal` is the quickest that leaves nothing in the kernel behind.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        stop_signal: signal.Signals,
        end_signal: signal.Signals,
        account: Account | None = None,
        sweep: bool = False,
    ) -> None:
        self.name = name
        self.directory = directory
        self.log = directory / "log"
        self._stop_signal = stop_signal
        self._end_signal = end_signal
        self._account = account
        self._sweep = sweep
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def running(self) -> bool:
        """Whether the process is there, answering or not."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server itself, not of its keeper."""
        if not self.running or self._pid is None:
            raise StackProblem(f"{self.name} is not running")
        return self._pid

    def start(self, command: Sequence[str | Path]) -> None:
        """Start the process; it may still fail to come up."""
        if self.running:
            raise StackProblem(f"{self.name} is running already (process {self._pid})")
        arguments = ["--log", str(self.log), "--end-signal", str(int(self._end_signal))]
        if self._account is not None:
            arguments += ["--user", str(self._account.uid), "--group", str(self._account.gid)]
        if self._sweep:
            arguments += ["--sweep", str(self.directory)]
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_KEEPER), *arguments, "--", *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._keeper.stdout is None:
            raise AssertionError
        line = self._keeper.stdout.readline()
        if not line:
            self._release()
            raise StackProblem(f"{self.name} could not be started: {command[0]} does not run")
        self._pid = int(line)

    def stop(self, grace_seconds: float = 20.0) -> None:
        """Stop in good order, hard after the grace. Harmless when it is not running."""
        self._finish(self._stop_signal, grace_seconds)

    def end(self) -> None:
        """Stop as quickly as possible; the data is to be thrown away."""
        self._finish(self._end_signal, 5.0)

    def kill(self) -> None:
        """`kill -9`, as a crash would."""
        self._finish(signal.SIGKILL, 5.0)

    def send(self, number: signal.Signals) -> None:
        """Send any signal, such as SIGSTOP and SIGCONT."""
        os.kill(self.pid, number)

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _finish(self, number: signal.Signals, grace_seconds: float) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        if self.running:
            os.kill(self.pid, number)
            with contextlib.suppress(StackProblem, ProcessLookupError):
                # A paused process takes no signal but SIGKILL until it goes on.
                os.kill(self.pid, signal.SIGCONT)
        try:
            keeper.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            keeper.wait()
        self._release()

    def _release(self) -> None:
        if self._keeper is not None:
            for stream in (self._keeper.stdin, self._keeper.stdout):
                if stream is not None:
                    stream.close()
            self._keeper.wait()
        self._keeper = None
        self._pid = None
