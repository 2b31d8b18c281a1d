"""Supervises one server process, and ends it when the process that started the keeper is gone.

A program of its own, started by path, with the standard library only. Its guarantees:
1. The first line that it prints is the server's process id.
2. When the server ends, the keeper ends with the server's exit status.
3. When the keeper's standard input closes or its parent changes, the parent has died. Then the keeper ends the server,
   by SIGKILL if needed, and removes the directory given by `--sweep`: a crashed run leaves nothing behind.
4. When the keeper is killed, the kernel ends the server.
5. Child processes that a dying server leaves running, such as busy backends of a killed Postgres, are killed.
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
    parser.add_argument("--log", help="file for the server's output; default: standard output, after the first line")
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
        # Set after the change of account, which would clear it.
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
    """Kill the processes that the server left. The keeper is their subreaper, and so their parent now."""
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
        # The last server to end also removes the directory that all servers share.
        if not any(place.is_dir() for place in directory.parent.iterdir()):
            shutil.rmtree(directory.parent)


def main() -> int:
    """Run until the server or the parent ends; return the server's exit status."""
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
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: the loop below notices that
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
