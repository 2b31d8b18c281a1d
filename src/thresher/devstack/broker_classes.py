"""The archive of the broker's classes: with it, a node starts with 40 % less processor time.

The first stack of a machine makes the archive: a broker with empty storage starts, and Java writes the archive when it
stops. Stacks that start meanwhile wait for it. After a failure, no stack tries again for a day. Without an archive,
brokers start more slowly, and nothing else changes.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from thresher.core.cds_archive import CdsArchive
from thresher.core.directories import cache_home
from thresher.core.java import Java
from thresher.core.throwaway import Throwaway, sweep
from thresher.devstack.cache import locked
from thresher.devstack.problem import StackProblem

logger = logging.getLogger(__name__)

_PREFIX = "thresher-classes-"
_WITHOUT = "Kafka starts without an archive of its classes: %s"


Run = Callable[[Path, str], bool]


def archive_option(java: Java, jars: Path, version: str, run: Run) -> str | None:
    """Return the Java option that uses the archive, which is made if it is missing. None if there can be none.

    `run` starts a broker in an empty directory with the given Java option, stops it, and returns whether it ended
    without being killed.
    """
    sweep(_PREFIX)
    archive = CdsArchive("Kafka", java, jars, version, make=False, workplace=cache_home())
    if archive.found is None and archive.directory is not None and _can_be_made(java):
        try:
            with locked(archive.directory / "lock"):
                _make(java, jars, version, run)
        except OSError as error:
            # The cache may be another user's, or the disk full.
            logger.warning(_WITHOUT, error)
        archive = CdsArchive("Kafka", java, jars, version, make=False, workplace=cache_home())
    return archive.option


def _can_be_made(java: Java) -> bool:
    """Whether Java has an archive of its own classes, on which ours is built."""
    return any(java.executable.resolve().parents[1].glob("lib/server/classes*.jsa"))


def _make(java: Java, jars: Path, version: str, run: Run) -> None:
    temporary = Throwaway(_PREFIX)
    try:
        archive = CdsArchive("Kafka", java, jars, version, make=True, workplace=temporary.path)
        # Another stack may have made the archive meanwhile, or failed to.
        if archive.found is not None or archive.option is None or archive.failed:
            return
        kept = False
        try:
            if run(temporary.path / "stack", archive.option):
                kept = archive.keep()
            else:
                logger.warning(_WITHOUT, "the broker was killed before it had written one")
        except StackProblem as problem:
            logger.warning(_WITHOUT, problem)
        if not kept:
            archive.note_failure()
    finally:
        temporary.remove()
