"""Questions that tests ask about processes and directories, and a function to wait for a condition."""

import contextlib
import ctypes
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from thresher.core.java import find_java
from thresher.spark.process import find_process

ROOT = Path(__file__).parents[1]
# The import path for programs that tests start: the source beside the tests, which may be the copy of a mutant.
PYTHON_PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie process does not."""
    return find_process(pid) is not None


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    """The kernel's letter for the state of its main thread: R runs, S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def signal_a_thread(pid: int, kind: signal.Signals) -> None:
    """Send a signal to a thread other than the main thread, as the kernel may deliver any signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    others = sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir() if int(entry.name) != pid)
    for thread in others:
        # Threads of Kafka's client block all signals, so a signal sent there would stay pending. A thread may have
        # ended.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if not _signals(pid, thread, "SigBlk") >> (kind - 1) & 1 and libc.tgkill(pid, thread, int(kind)) == 0:
                return
    raise AssertionError(f"no thread of {pid} takes {kind}")


def hears(pid: int, kind: signal.Signals) -> bool:
    """Whether the process has a handler for a signal."""
    return bool(_signals(pid, pid, "SigCgt") >> (kind - 1) & 1)


def _signals(pid: int, thread: int, field: str) -> int:
    (line,) = [
        each for each in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines() if each.startswith(field)
    ]
    return int(line.split()[1], 16)


def parent(pid: int) -> int:
    """The parent process: the one that started this process, or adopted it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def command_line(pid: int) -> bytes:
    """The command line of the process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def is_java(pid: int) -> bool:
    """Whether the process is a JVM, and not a helper by which a JVM starts other programs."""
    return Path(command_line(pid).split(b"\0")[0].decode(errors="replace")).name == "java"


def marked(mark: str) -> dict[int, str]:
    """Every process with the mark in its environment, whoever its parent is now, with its command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes() and alive(int(entry.name)):
                found[int(entry.name)] = command_line(int(entry.name)).replace(b"\0", b" ").decode(errors="replace")
    return found


def descendants(pid: int) -> set[int]:
    """Every process below this one."""
    children: dict[int, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children.setdefault(parent(int(entry.name)), set()).add(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), set()):
            found.add(child)
            waiting.append(child)
    return found


def listening(pids: set[int]) -> list[int]:
    """Return the TCP ports on which these processes listen. All must be on loopback."""
    inodes = socket_inodes(pids)
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].rsplit(":", 1)
                # 127.0.0.1, also as an address of IPv6, as the kernel writes it.
                assert address.endswith("0100007F"), (address, port)
                ports.add(int(port, 16))
    return sorted(ports)


def socket_inodes(pids: set[int]) -> set[str]:
    """Return the inodes of the sockets that these processes have open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found


def eventually(condition: Callable[[], object], seconds: float, complaint: Callable[[], str] = lambda: "") -> None:
    """Wait until the condition holds. It is tried once more after the deadline, in case this process was stalled.

    A condition that asks a server takes a good part of a processor if it is tried all the time: the waits between two
    tries are three times as long as a try, up to half a second.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < deadline, f"not within {seconds} s. {complaint()}"
        time.sleep(min(max(0.05, 3 * (time.monotonic() - began)), 0.5))


def open_directory() -> Path:
    """A temporary directory that the database's account can enter; as root, it cannot enter pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="thresher-test-"))
    directory.chmod(0o711)
    return directory


def spark_submit_variables() -> dict[str, str]:
    """Let `spark-submit` find Java, and start it as our sessions do: seconds are not worth the second compiler."""
    brief = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return {"SPARK_SUBMIT_OPTS": brief, "SPARK_LAUNCHER_OPTS": brief, **find_java().environment}


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes, a terminal width that wraps no line, and no colours."""
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", **changes}


def short_directory() -> Path:
    """Make a directory in the run's own, with a path that is short enough for the Unix sockets of a program's Spark."""
    return Path(tempfile.mkdtemp(prefix="e"))
