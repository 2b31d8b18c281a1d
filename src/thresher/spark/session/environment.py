"""Packs the driver's Python environment into an archive that Spark ships to executors (`thresher spark pack`).

The archive holds the installed packages and a link to the interpreter, as a virtual environment does. The executors'
machines therefore need the same Python at the same path. PySpark is left out, because every Spark brings its own.
"""

import io
import re
import sys
import tarfile
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path

import thresher
from thresher.core.errors import InvalidInput

_SPARKS_OWN = {"pyspark", "py4j"}
# Files that are needed only for builds and tests.
_LEFT_OUT = re.compile(r"(^|/)(__pycache__|tests|include)/|\.(pyi|pxd|pyx|a|h|hpp|cc)$")


class PackImpossible(InvalidInput):
    """The environment cannot be packed as asked; nothing was written."""


def pack(target: Path, *, only: Collection[str] = ()) -> int:
    """Write the archive, a `.tar.gz`, and return how many distributions are in it.

    With `only`, the archive holds these distributions and their requirements, otherwise everything that is installed.
    A crash leaves no incomplete archive under this name.
    """
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise PackImpossible(f"{target} must end in .tar.gz: Spark tells the format by the name")
    installed = {_canonical(each.name): each for each in metadata.distributions()}
    names = _required(only, installed) if only else set(installed)
    names = (names | {"thresher"}) - _SPARKS_OWN
    files: dict[str, Path] = {}
    for name in sorted(names):
        files |= dict(_files(name, installed[name]))
    draft = target.with_name(f"{target.name}.draft")
    try:
        with tarfile.open(draft, mode="w:gz", compresslevel=1) as archive:
            _add_interpreter(archive)
            for inside, path in sorted(files.items()):
                archive.add(path, arcname=f"{_site_packages()}/{inside}", recursive=False)
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
    return len(names)


def _required(only: Collection[str], installed: dict[str, metadata.Distribution]) -> set[str]:
    """Return these distributions and their requirements. A requirement that is not installed is not needed here."""
    if missing := sorted(name for name in only if _canonical(name) not in installed):
        raise PackImpossible(f"not installed, so they cannot be packed: {', '.join(missing)}")
    found: set[str] = set()
    waiting = [_canonical(name) for name in only]
    while waiting:
        name = waiting.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        waiting += [
            _canonical(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
            for requirement in installed[name].requires or ()
            if "extra ==" not in requirement
        ]
    return found


def _files(name: str, distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    if name == "thresher":
        # From the directory that it is imported from, which may be a checkout.
        package = Path(thresher.__file__).parent
        for path in package.rglob("*"):
            inside = path.relative_to(package.parent).as_posix()
            if path.is_file() and not _LEFT_OUT.search(inside):
                yield inside, path
        return
    if _is_editable(distribution):
        raise PackImpossible(
            f"{name} is installed in editable mode and cannot be packed: install it, or ship its files"
        )
    for file in distribution.files or ():
        inside = file.as_posix()
        path = Path(str(distribution.locate_file(file)))
        # Files outside of the packages, such as scripts, contain this machine's paths.
        if not inside.startswith(("..", "/")) and path.is_file() and not _LEFT_OUT.search(inside):
            yield inside, path


def _is_editable(distribution: metadata.Distribution) -> bool:
    origin = distribution.read_text("direct_url.json")
    return origin is not None and '"editable": true' in origin.replace('"editable":true', '"editable": true')


def _add_interpreter(archive: tarfile.TarFile) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"bin/{name}")
        link.type, link.linkname, link.mode = tarfile.SYMTYPE, str(base), 0o777
        archive.addfile(link)
    content = f"home = {base.parent}\ninclude-system-site-packages = false\n".encode()
    settings = tarfile.TarInfo("pyvenv.cfg")
    settings.size, settings.mode = len(content), 0o644
    archive.addfile(settings, io.BytesIO(content))


def _site_packages() -> str:
    return f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
