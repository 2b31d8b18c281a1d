"""The CPU time and memory of processes, as the kernel counts them."""

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, []))
    return found


def cpu_seconds(processes: Iterable[int]) -> float:
    """Return the CPU time of the processes so far; a process that is gone counts as 0."""
    return sum((int(fields[11]) + int(fields[12])) / _TICKS for each in processes if (fields := _stat(each)))


def cpu_seconds_ever(root: int) -> float:
    """Return the CPU time of a process and its descendants so far, including children that have ended."""
    return sum(sum(map(int, fields[11:15])) / _TICKS for each in tree(root) if (fields := _stat(each)))


def most_resident_mb(processes: Iterable[int]) -> float:
    """Return the highest peak memory among the processes that run a shard."""
    peaks = [0.0]
    for each in processes:
        try:
            command = Path(f"/proc/{each}/cmdline").read_bytes()
            status = Path(f"/proc/{each}/status").read_text()
        except OSError:
            continue
        if b"spark.daemon" in command:
            peaks.append(int(status.split("VmHWM:")[1].split()[0]) / 1024)
    return max(peaks)


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []
