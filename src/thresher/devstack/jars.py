"""The broker's jars: exactly those in a lock file, downloaded by PySpark's Ivy, and verified by SHA-256.

1. The lock file lists coordinates and digest of each jar. Dependencies are not resolved, so versions cannot change.
2. Ivy downloads them into a stage; each is verified; the stage is renamed into the cache. See `cache`.
3. At each start they are verified again: a jar that was changed on disk, or that another user may change, is refused,
   with its name.

THRESHER_IVY_SETTINGS names an Ivy settings file, to download from a mirror.
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from thresher.core.directories import cache_home
from thresher.core.installing import how_to_install
from thresher.core.java import find_java
from thresher.core.trusted_path import why_untrusted
from thresher.devstack.cache import staged
from thresher.devstack.problem import BadRequest, JarMismatch, StackProblem
from thresher.devstack.server import run_tool

VERSIONS = ("4.2.1", "3.9.1")

# Called with the name of the current download, the number of finished ones, and their total.
Progress = Callable[[str, int, int], None]

# Ivy's default repository, without metadata and checksums: the lock file has exact versions and stronger digests.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="default"/>
  <resolvers>
    <ibiblio name="default" m2compatible="true" usepoms="false" useMavenMetadata="false" checksums=""/>
  </resolvers>
</ivysettings>
"""
_TELLING = (
    "no space",
    "denied",
    "failed",
    "error",
    "unresolved",
    "not found",
    "timed out",
    "refused",
    "unknown host",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of a lock file."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{self.module}-{self.revision}.jar"


def lock_path(version: str) -> Path:
    """Return the lock file of a broker version."""
    return Path(str(resources.files("thresher.devstack").joinpath("locks", f"kafka-{version}.lock")))


def read_lock(version: str) -> tuple[Jar, ...]:
    """Return the jars of a broker version."""
    if version not in VERSIONS:
        raise BadRequest(f"Kafka {version} has no lock file; choose one of {', '.join(VERSIONS)}")
    jars = []
    for line in lock_path(version).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            digest, coordinates = line.split()
            organisation, module, revision = coordinates.split(":")
            jars.append(Jar(organisation=organisation, module=module, revision=revision, sha256=digest))
    return tuple(jars)


def directory_of(version: str) -> Path:
    """Return the directory of a broker version's jars in the cache."""
    # A changed lock file has another directory, so old jars are never used for it.
    mark = hashlib.sha256(lock_path(version).read_bytes()).hexdigest()[:12]
    return cache_home() / f"kafka-{version}-{mark}"


def jars_of(version: str, progress: Progress | None = None) -> Path:
    """Return the directory with the broker's verified jars. The first call downloads them."""
    jars = read_lock(version)
    with staged(directory_of(version)) as (target, stage):
        if stage is not None:
            fetch(jars, stage, progress)
            verify(jars, stage, "the repository has other content than the lock file names")
    verify(jars, target, f"remove {target} to fetch it again")
    return target


def classpath(version: str, progress: Progress | None = None) -> str:
    """Return the Java class path of the locked jars, without other files in their directory."""
    directory = jars_of(version, progress)
    if os.pathsep in str(directory):
        raise BadRequest(
            f"Java cannot read jars from {directory}: a colon separates paths; set THRESHER_CACHE to another directory"
        )
    return os.pathsep.join(str(directory / jar.file) for jar in read_lock(version))


def verify(jars: tuple[Jar, ...], directory: Path, remedy: str) -> None:
    """Raise `JarMismatch`, with names, unless every jar exists and has the digest of the lock file."""
    wrong = []
    for jar in jars:
        try:
            digest = hashlib.sha256((directory / jar.file).read_bytes()).hexdigest()
        except OSError as error:
            wrong.append(f"{jar.file} cannot be read ({error.strerror})")
            continue
        if digest != jar.sha256:
            wrong.append(f"{jar.file} has SHA-256 {digest}, the lock says {jar.sha256}")
        elif why := why_untrusted(directory / jar.file):
            # It could be changed after it was verified.
            wrong.append(why)
    if wrong:
        raise JarMismatch(f"{'; '.join(wrong)}. Not used: {remedy}.")


def fetch(jars: tuple[Jar, ...], directory: Path, progress: Progress | None = None) -> None:
    """Download the jars with Ivy. Raises `StackProblem` with Ivy's reason; then the directory must not be used."""
    work = directory / "ivy"
    work.mkdir()
    module = work / "ivy.xml"
    module.write_text(_module(jars), encoding="utf-8")
    settings = os.environ.get("THRESHER_IVY_SETTINGS")
    if not settings:
        settings = str(work / "settings.xml")
        Path(settings).write_text(_SETTINGS, encoding="utf-8")
    command: list[str | Path] = [
        find_java().executable,
        "-Xmx256m",
        "-Dsun.net.client.defaultConnectTimeout=15000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        "-jar", ivy(),
        "-settings", settings,
        "-cache", work / "cache",
        "-ivy", module,
        "-retrieve", f"{directory}/[artifact]-[revision].[ext]",
    ]  # fmt: skip
    done = 0

    def follow(line: str) -> None:
        nonlocal done
        if line.startswith("downloading"):
            done += 1
            if progress:
                progress(line.split()[1].rsplit("/", 1)[-1], min(done, len(jars)), len(jars))

    status, output = run_tool(command, work, on_line=follow)
    lines = [line.strip() for line in output.splitlines()]
    missing = [jar.file for jar in jars if not (directory / jar.file).exists()]
    if status != 0 or missing:
        telling = [line for line in lines if any(word in line.lower() for word in _TELLING)]
        reason = "\n  ".join(dict.fromkeys((telling or lines)[-8:])) or f"Ivy ended with {status}"
        raise StackProblem(
            f"could not fetch {len(missing) or len(jars)} of the {len(jars)} jars into {directory.parent} "
            f"(a network and about 100 MB of disk are needed, once):\n  {reason}"
        )
    for leftover in sorted(work.rglob("*"), reverse=True):
        leftover.rmdir() if leftover.is_dir() else leftover.unlink()
    work.rmdir()


def _module(jars: tuple[Jar, ...]) -> str:
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415 - imports an HTTP client, which only a download needs

    wanted = "\n".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} rev={quoteattr(jar.revision)} "
        'transitive="false" conf="default->*"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="thresher" module="broker"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )


def ivy() -> Path:
    """Return the jar of the Ivy that PySpark ships."""
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise StackProblem(f"PySpark, whose Ivy fetches the broker, is not installed: {how_to_install('stack')}")
    return found[-1]
