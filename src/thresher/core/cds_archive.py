"""Java's class data sharing archive (AppCDS) of Spark or Kafka: mapped classes make a JVM's start much quicker.

1. An archive belongs to one build of Java and one installation of the program's jars, which its name identifies. The
   name holds a checksum too, because Java crashes on a damaged archive.
2. If the cache has no archive, the JVM writes one when it exits, into its own temporary directory. The archive is then
   moved into the cache. Concurrent JVMs therefore do not collide, and a killed one leaves nothing in the cache.
3. Java runs what an archive holds. One that another account of the machine could have written is never used.
4. Without a usable archive the start takes longer, and the log says why. Nothing else changes.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import time
import zlib
from pathlib import Path

from thresher.core.directories import PlaceUnusable, cache_home, make_writable
from thresher.core.java import Java
from thresher.core.trusted_path import why_untrusted

logger = logging.getLogger(__name__)

_DRAFT_SECONDS = 3600.0
_FAILED_SECONDS = 86400.0
_UNUSED_SECONDS = 30 * 86400.0


class CdsArchive:
    """The archive for one Java and one program, "Spark" or "Kafka": found, to be made, or not available."""

    def __init__(self, program: str, java: Java, jars: Path, version: str, *, make: bool, workplace: Path) -> None:
        """With `make`, Java writes a missing archive into `workplace`, a directory of the JVM's own, when it exits."""
        mark = f"{java.executable.resolve()}\n{java.version}\n{version}\n{jars}\n{jars.stat().st_mtime_ns}"
        self._program, name = program, program.lower()
        self._stem = f"{name}-{version}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
        # Where archives are kept; None if that place cannot be used.
        self.directory: Path | None = None
        # The file for Java's complaints about the archive.
        self.log = workplace / "cds.log"
        self.found: Path | None = None
        self._stage: Path | None = None
        try:
            self.directory = _private(make_writable(cache_home() / name, "THRESHER_CACHE"))
        except PlaceUnusable as error:
            logger.warning("%s starts without an archive of its classes: %s", program, error)
            return
        self._tidy(self.directory)
        self.found = self._find(self.directory)
        if self.found is None and make:
            self._stage = workplace / "classes.jsa"

    @property
    def option(self) -> str | None:
        """The option that makes Java use or write the archive."""
        if self.found is not None:
            return f"-XX:SharedArchiveFile={self.found}"
        return None if self._stage is None else f"-XX:ArchiveClassesAtExit={self._stage}"

    def java_options(self) -> tuple[str, ...]:
        """Return the options that make Java use or write the archive, and log its warnings to a file."""
        if self.option is None:
            return ()
        return (self.option, "-Xlog:disable", "-Xlog:all=error:stderr", f"-Xlog:cds*=warning:file={self.log}")

    def warn_if_unused(self) -> None:
        """Log a warning if Java did not accept the archive. Call it once Java is up."""
        if self.found is not None:
            with contextlib.suppress(OSError):
                if complaints := self.log.read_text(errors="replace").strip():
                    logger.warning("Java does not use %s: %s", self.found, complaints.splitlines()[0])

    @property
    def failed(self) -> bool:
        """Whether making the archive has failed within the last day."""
        return self.directory is not None and self._failure_in(self.directory).exists()

    def note_failure(self) -> None:
        """Record that the archive could not be made."""
        if self.directory is not None:
            self._failure_in(self.directory).touch()

    def keep(self) -> bool:
        """Move a written archive into the cache, and return whether it is there.

        Call it after Java has ended without being killed; harmless if none was written.
        """
        stage, self._stage = self._stage, None
        if stage is None or self.directory is None:
            return False
        # The cache may be on another file system: move to a draft there first, then rename.
        draft = self.directory / f"{self._stem}.{os.getpid()}-{time.monotonic_ns()}.draft"
        try:
            shutil.move(stage, draft)
            draft.chmod(0o644)  # whatever the umask is: an archive that a group may write would not be used
            draft.rename(self.directory / f"{self._stem}-{checksum(draft)}.jsa")
        except OSError as error:
            draft.unlink(missing_ok=True)
            logger.warning("the archive of %s's classes could not be kept: %s", self._program, error)
            return False
        return True

    def _find(self, directory: Path) -> Path | None:
        for path in sorted(directory.glob(f"{self._stem}-*.jsa")):
            try:
                if danger := why_untrusted(path):
                    logger.warning("%s starts without its archive of classes: %s", self._program, danger)
                    continue
                if path.stem.rsplit("-", 1)[1] == checksum(path):
                    # It counts as used, unless it is another user's.
                    with contextlib.suppress(PermissionError):
                        os.utime(path)
                    return path
                logger.warning("%s is damaged: it is removed and made again", path)
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s starts without its archive of classes: %s", self._program, error)
        return None

    def _failure_in(self, directory: Path) -> Path:
        return directory / f"{self._stem}.failed"

    def _tidy(self, directory: Path) -> None:
        """Remove old drafts of crashed programs, failures of yesterday, and archives that were not used for 30 days."""
        longest = {".draft": _DRAFT_SECONDS, ".failed": _FAILED_SECONDS}
        now = time.time()
        for path in directory.glob(f"{self._program.lower()}-*"):
            with contextlib.suppress(OSError):
                age = now - path.stat().st_mtime
                if age > longest.get(path.suffix, _UNUSED_SECONDS):
                    path.unlink()


def _private(directory: Path) -> Path:
    """Return the real directory. Raises `PlaceUnusable` if another user could change what is in it."""
    real = directory.resolve()
    if danger := why_untrusted(real):
        raise PlaceUnusable(f"{danger}: take that right away, or point THRESHER_CACHE elsewhere")
    return real


def checksum(path: Path) -> str:
    """Return a checksum of the whole file, which takes about 25 ms for 65 MB."""
    return f"{zlib.crc32(path.read_bytes()):08x}"
