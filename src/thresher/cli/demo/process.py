"""A program of the demo as a process of its own: something to kill."""

import signal
import subprocess
import sys
from pathlib import Path

from thresher.core.errors import ThresherError


class DemoProcess:
    """One program. A context manager that leaves no process behind."""

    def __init__(
        self, what: str, arguments: list[str], log: Path, *, module: str = "thresher", output: bool = False
    ) -> None:
        """`what` names it in errors. With `output`, its standard output is read by the caller."""
        self._what, self._log, self._output = what, log, output
        self._command = [sys.executable, "-m", module, *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, next to what is left of the one before."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE if self._output else log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def require_alive(self) -> None:
        """Raise with its last words if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            last = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise ThresherError(f"the {self._what} ended with exit code {self.process.returncode}:\n{last}")

    def pause(self) -> None:
        """Stop it where it stands, with SIGSTOP: it does nothing until it goes on or is killed."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after a pause."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop it in good order."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def __enter__(self) -> "DemoProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
