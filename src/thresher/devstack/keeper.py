"""Keeps one server process, and ends it when whoever asked for it is gone.

A program of its own, standard library only, started by path. Its promises:
1. The server's process id is the first line it prints.
2. When the server ends, it ends with the server's exit status.
3. When its standard input closes or its parent changes (the parent died, however), it ends the server, hard if need
   be, and removes the directory it was told to sweep: nothing is left of a crashed run.
4. When it is itself killed, the kernel ends the server.
5. What the server leaves running when it dies (a killed Postgres: its busy backends) ends with it.
"""

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HARD_END_SECONDS = 5.0
_LOOK_SECONDS = 0.5


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", help="where the output goes; by default, to standard output behind the first line")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--end-signal", type=int, required=True)
    parser.add_argument("--user", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--sweep")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _start(options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    keeper = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def tie_to_keeper() -> None:
        # After the change of account, which would clear it.
        libc.prctl(_PR_SET_PDEATHSIG, options.end_signal)
        if os.getppid() != keeper:
            os._exit(1)

    account = {} if options.user is None else {"user": options.user, "group": options.group, "extra_groups": []}
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    log = 1 if options.log is None else os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return subprocess.Popen(
        options.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=options.directory,
        start_new_session=True,
        preexec_fn=tie_to_keeper,  # noqa: PLW1509 - this process has one thread
        **account,
    )


def _end(server: "subprocess.Popen[bytes]", end_signal: int) -> None:
    server.send_signal(end_signal)
    try:
        server.wait(_HARD_END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _end_leftovers() -> None:
    """Kill what the server left: as its subreaper we are now the parent."""
    while True:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _sweep(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        # The last of the servers takes what they shared along.
        if not any(place.is_dir() for place in directory.parent.iterdir()):
            shutil.rmtree(directory.parent)


def main() -> int:
    """Keep the server until it or the parent ends; return the server's exit status."""
    options = _options()
    parent = os.getppid()
    told_to_end = False
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)

    def end(_signal: int, _frame: FrameType | None) -> None:
        nonlocal told_to_end
        told_to_end = True

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    server = _start(options)
    with contextlib.suppress(BrokenPipeError):  # nobody is there to read it: the loop finds that out
        os.write(1, f"{server.pid}\n".encode())
    while server.poll() is None:
        readable, _, _ = select.select([0, wake_reader], [], [], _LOOK_SECONDS)
        if wake_reader in readable:
            os.read(wake_reader, 4096)
        orphaned = os.getppid() != parent or (0 in readable and not os.read(0, 4096))
        if orphaned or told_to_end:
            _end(server, options.end_signal)
            _end_leftovers()
            if orphaned and options.sweep:
                _sweep(Path(options.sweep))
    _end_leftovers()
    status = server.returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
