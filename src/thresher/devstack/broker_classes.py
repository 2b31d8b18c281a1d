"""The archive of the broker's classes: with it, a node starts with 40 % less processor time.

The first stack of a machine makes the archive: a broker with empty storage starts, and Java writes the archive when it
stops. Stacks that start meanwhile wait for it. Without an archive, brokers start more slowly, and nothing else changes.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from thresher.core.cds_archive import CdsArchive
from thresher.core.directories import cache_home
from thresher.core.java import Java
from thresher.core.throwaway import Throwaway
from thresher.devstack.cache import locked
from thresher.devstack.problem import StackProblem

logger = logging.getLogger(__name__)

_PREFIX = "thresher-classes-"


def archive_option(java: Java, jars: Path, version: str, run: Callable[[Path, str], None]) -> str | None:
    """Return the Java option that uses the archive, which is made if it is missing. None if there can be none.

    `run` starts a broker in an empty directory with the given Java option, and stops it.
    """
    archive = CdsArchive("Kafka", java, jars, version, make=False, workplace=cache_home())
    if archive.found is None and archive.directory is not None and _can_be_made(java):
        with locked(archive.directory / "lock"):
            _make(java, jars, version, run)
        archive = CdsArchive("Kafka", java, jars, version, make=False, workplace=cache_home())
    return archive.option


def _can_be_made(java: Java) -> bool:
    """Whether Java has an archive of its own classes, on which ours is built."""
    return any(java.executable.resolve().parents[1].glob("lib/server/classes*.jsa"))


def _make(java: Java, jars: Path, version: str, run: Callable[[Path, str], None]) -> None:
    temporary = Throwaway(_PREFIX)
    try:
        archive = CdsArchive("Kafka", java, jars, version, make=True, workplace=temporary.path)
        # Another stack may have made the archive meanwhile.
        if archive.found is None and archive.option is not None:
            run(temporary.path / "stack", archive.option)
            archive.keep()
    except StackProblem as problem:
        logger.warning("Kafka starts without an archive of its classes: %s", problem)
    finally:
        temporary.remove()
