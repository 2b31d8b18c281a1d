"""Java's classes as Spark uses them, mapped into memory instead of loaded one by one (AppCDS): a quicker start.

1. The archive belongs to one build of Java and one installation of PySpark; its name says which, and holds a checksum,
   because Java crashes on a damaged one instead of passing it over.
2. Where there is none, the JVM leaves one behind when it ends in good order. It goes to a name of its own and is
   renamed into place, so that any number of makers do not meet.
3. An archive that cannot be found, made or used costs time, nothing else: a note in the log says so.
"""

import contextlib
import hashlib
import logging
import os
import time
import zlib
from pathlib import Path

from thresher.core.java import Java
from thresher.core.places import PlaceUnusable, cache_home, make_writable

logger = logging.getLogger(__name__)

_STAGE_SECONDS = 3600.0
_UNUSED_SECONDS = 30 * 86400.0


class Archive:
    """The archive for one Java and one Spark: found, to be made, or neither."""

    def __init__(self, java: Java, jars: Path, version: str, *, make: bool) -> None:
        mark = f"{java.executable.resolve()}\n{java.version}\n{version}\n{jars}\n{jars.stat().st_mtime_ns}"
        self._stem = f"spark-{version}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
        self._directory: Path | None = None
        self.found: Path | None = None
        self._stage: Path | None = None
        try:
            self._directory = make_writable(cache_home() / "spark", "THRESHER_CACHE")
        except PlaceUnusable as error:
            logger.warning("Spark starts without an archive of its classes: %s", error)
            return
        self.found = self._find(self._directory)
        if self.found is None and make:
            self._stage = self._directory / f"{self._stem}.{os.getpid()}-{time.monotonic_ns()}.stage"

    def java_options(self, log: Path) -> tuple[str, ...]:
        """Return what makes Java use the archive, or make it, and write its complaints where nobody is disturbed."""
        quiet = ("-Xlog:disable", "-Xlog:all=error:stderr", f"-Xlog:cds*=warning:file={log}")
        if self.found is not None:
            return (f"-XX:SharedArchiveFile={self.found}", *quiet)
        if self._stage is not None:
            return (f"-XX:ArchiveClassesAtExit={self._stage}", *quiet)
        return ()

    def look_at(self, log: Path) -> None:
        """Once Java is up: note it if the archive was found and not used."""
        if self.found is not None:
            with contextlib.suppress(OSError):
                if complaints := log.read_text(errors="replace").strip():
                    logger.warning("Java does not use %s: %s", self.found, complaints.splitlines()[0])

    def keep(self) -> None:
        """Once Java has ended in good order: put what it made into place. Harmless when nothing was to be made."""
        stage, self._stage = self._stage, None
        if stage is None or self._directory is None:
            return
        try:
            stage.rename(self._directory / f"{self._stem}-{checksum(stage)}.jsa")
        except OSError as error:
            logger.warning("the archive of Spark's classes could not be kept: %s", error)
        self._tidy(self._directory)

    def forget(self) -> None:
        """Java was killed: what it may have begun is not to be used."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.unlink(missing_ok=True)

    def _find(self, directory: Path) -> Path | None:
        for path in sorted(directory.glob(f"{self._stem}-*.jsa")):
            try:
                if path.stem.rsplit("-", 1)[1] == checksum(path):
                    os.utime(path)
                    return path
                logger.warning("%s is damaged: it is removed and made again", path)
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("Spark starts without its archive of classes: %s", error)
        return None

    def _tidy(self, directory: Path) -> None:
        """Remove what crashed makers left, and archives of versions that nobody has used for long."""
        now = time.time()
        for path in directory.glob("spark-*"):
            with contextlib.suppress(OSError):
                age = now - path.stat().st_mtime
                if age > (_STAGE_SECONDS if path.suffix == ".stage" else _UNUSED_SECONDS):
                    path.unlink()


def checksum(path: Path) -> str:
    """Return a checksum of the whole file; some 25 ms for 65 MB."""
    return f"{zlib.crc32(path.read_bytes()):08x}"
