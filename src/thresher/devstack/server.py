"""One server process under a keeper. The process that owns it can stop, kill, pause and restart it.

The server ends when its owner ends, for whatever reason: see `keeper`.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from thresher.devstack.account import Account
from thresher.devstack.problem import StackProblem

_KEEPER = Path(__file__).with_name("keeper.py")
_TAIL_BYTES = 8192
# What programs get of our environment, which may hold secrets: under another account, that account can read it.
_PASSED_ON = ("PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_PASSED_ON_TO_OUR_OWN = ("HOME", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def start_keeper(
    command: Sequence[str | Path],
    directory: Path,
    *,
    log: Path | None = None,
    end_signal: signal.Signals = signal.SIGKILL,
    account: Account | None = None,
    sweep: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program under a keeper. The first line of the keeper's output is the program's process id.

    Both get a small part of our environment: whatever secrets it holds stay with us.
    """
    arguments = ["--directory", str(directory), "--end-signal", str(int(end_signal))]
    if log is not None:
        arguments += ["--log", str(log)]
    if account is not None:
        arguments += ["--user", str(account.uid), "--group", str(account.gid)]
    if sweep is not None:
        arguments += ["--sweep", str(sweep)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_KEEPER), *arguments, "--", *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(account),
        start_new_session=True,
    )


def _environment(account: Account | None) -> dict[str, str]:
    names = _PASSED_ON if account is not None else _PASSED_ON + _PASSED_ON_TO_OUR_OWN
    passed_on = {name: os.environ[name] for name in names if name in os.environ}
    # Messages in English and file names in UTF-8 for every user: with another locale, Java corrupts some paths.
    return {**passed_on, "LC_ALL": "C.UTF-8"}


def run_tool(
    command: Sequence[str | Path],
    directory: Path,
    *,
    account: Account | None = None,
    on_line: Callable[[str], None] = lambda _line: None,
) -> tuple[int, str]:
    """Run a program to its end under a keeper, so that it ends with us at the latest; return its status and output."""
    with start_keeper(command, directory, account=account) as keeper:
        lines = []
        for number, line in enumerate(keeper.stdout or ()):
            if number:
                lines.append(line.decode(errors="replace").rstrip())
                on_line(lines[-1])
        return keeper.wait(), "\n".join(lines)


class Server:
    """A server's directory, its log, and its process while it runs.

    `stop_signal` requests a clean shutdown; `end_signal` is the fastest end that leaves no resources in the kernel.
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
        """Whether the process exists, even if it does not answer."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server itself, not of its keeper."""
        if not self.running or self._pid is None:
            raise StackProblem(f"{self.name} is not running")
        return self._pid

    def start(self, command: Sequence[str | Path]) -> None:
        """Start the process. Whether the server becomes ready is not checked here."""
        if self.running:
            raise StackProblem(f"{self.name} is running already (process {self._pid})")
        self._keeper = start_keeper(
            command,
            self.directory,
            log=self.log,
            end_signal=self._end_signal,
            account=self._account,
            sweep=self.directory if self._sweep else None,
        )
        line = self._keeper.stdout.readline() if self._keeper.stdout else b""
        if not line:
            self._release()
            raise StackProblem(f"{self.name} could not be started: {command[0]} does not run")
        self._pid = int(line)

    def stop(self, grace_seconds: float = 20.0) -> int | None:
        """Shut down cleanly; after the grace, kill. Return the exit status; None if the server was not running."""
        return self._finish(self._stop_signal, grace_seconds)

    def end(self) -> None:
        """Stop as fast as possible, for data that is removed."""
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

    def _finish(self, number: signal.Signals, grace_seconds: float) -> int | None:
        keeper = self._keeper
        if keeper is None:
            return None
        # A paused process handles no signal but SIGKILL until SIGCONT.
        for each in (number, signal.SIGCONT):
            self._signal_if_there(each)
        try:
            keeper.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._signal_if_there(signal.SIGKILL)
            keeper.wait()
        self._release()
        return keeper.returncode

    def _signal_if_there(self, number: signal.Signals) -> None:
        # The server may have ended by itself while its keeper still runs.
        with contextlib.suppress(StackProblem, ProcessLookupError):
            os.kill(self.pid, number)

    def _release(self) -> None:
        if self._keeper is not None:
            for stream in (self._keeper.stdin, self._keeper.stdout):
                if stream is not None:
                    stream.close()
            self._keeper.wait()
        self._keeper = None
        self._pid = None
