"""Files of superseded attempts: finds their directory, and removes them. Needs no Arrow."""

import logging
from pathlib import Path

from thresher.archive.batch import BatchFiles
from thresher.archive.directory import ArchiveDirectory, id_of
from thresher.archive.manifests import Manifests
from thresher.archive.problem import ArchiveRefused, ArchiveTrouble

logger = logging.getLogger(__name__)


def directory_of(files: BatchFiles, given: ArchiveDirectory | None) -> ArchiveDirectory | None:
    """Return the directory of a batch: `given` if it has the batch's directory id, or the one at the recorded path.

    None if neither has that id.
    """
    if given is not None and given.id == files.directory_id:
        return given
    return ArchiveDirectory(files.directory) if id_of(files.directory) == files.directory_id else None


def remove_superseded(manifests: Manifests, given: ArchiveDirectory | None) -> None:
    """Remove the files of superseded attempts. For a finished batch, a read-only directory is only a warning.

    Of a finished batch, nothing is removed unless its file is there: by the manifest alone, a file that somebody else's
    change of the manifest calls superseded would be lost.
    """
    skipped: set[Path] = set()
    for files, finished in manifests.superseded():
        if finished and files.directory in skipped:
            continue
        try:
            if (place := directory_of(files, given)) is not None:
                if finished and not place.place_of(files.name).exists():
                    # Then one of the others may be the archive's file, and the manifest was changed.
                    logger.warning("%s is missing in %s: no other file of its batch is removed", files.name, place.path)
                    continue
                place.remove(files.superseded)
        except (ArchiveRefused, ArchiveTrouble) as error:
            if not finished:
                raise
            skipped.add(files.directory)
            logger.warning("files of superseded attempts, if any, stay in %s: %s", files.directory, error)
