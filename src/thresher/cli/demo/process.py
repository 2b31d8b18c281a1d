"""Runs a program of the demo as a child process, which the demo can kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from thresher.core.errors import ThresherError

_VARIABLES = frozenset({"THRESHER_DS", "THRESHER_DATA_SOURCE"})


def environment_with(dsn: str) -> dict[str, str]:
    """Return our environment for a program that uses this database. Other users can read a command line, not this."""
    # Like the configuration, in any case. A second variable for the same value would be refused.
    others = {name: value for name, value in os.environ.items() if name.upper().removesuffix("_FILE") not in _VARIABLES}
    return {**others, "THRESHER_DS": dsn}


class DemoProcess:
    """One child process. A context manager: leaving it kills the process."""

    def __init__(
        self,
        what: str,
        arguments: list[str],
        log: Path,
        *,
        module: str = "thresher",
        output: bool = False,
        dsn: str | None = None,
    ) -> None:
        """`what` is its name in errors, `dsn` its database.

        With `output`, the caller reads its standard output, and not the log.
        """
        self._what, self._log, self._output = what, log, output
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._environment = None if dsn is None else environment_with(dsn)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program, perhaps again. Its log is appended to."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE if self._output else log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )

    def require_alive(self) -> None:
        """Raise with the last lines of its log if the process has ended."""
        if self.process is not None and self.process.poll() is not None:
            last = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise ThresherError(f"the {self._what} ended with exit code {self.process.returncode}:\n{last}")

    def pause(self) -> None:
        """Pause the process with SIGSTOP, until `go_on` or `kill`."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the process go on after a pause."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop the process with SIGTERM, and wait for its end."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def __enter__(self) -> "DemoProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
