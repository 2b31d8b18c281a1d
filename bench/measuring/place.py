"""The place of a bench: the machine, and servers with production durability."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thresher.devstack.broker import KafkaOptions
from thresher.devstack.postgres import PostgresOptions
from thresher.devstack.stack import Stack


def durable_stack(settings: Mapping[str, str] | None = None, kafka: KafkaOptions | None = None) -> Stack:
    """Return a stack whose Postgres waits for the disk, as in production; `settings` are Postgres settings."""
    return Stack(postgres=PostgresOptions(durable=True, settings=dict(settings or {})), kafka=kafka)


def machine() -> dict[str, Any]:
    """Return the properties of the machine on which figures depend."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(_memory_bytes() / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _memory_bytes() -> int:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return int(total.split()[1]) * 1024
