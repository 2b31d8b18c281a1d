"""Finds the Java that Spark and the broker run on: version 17 or 21, with which both are tested.

The search covers JAVA_HOME, the PATH and Debian's directory of runtimes, in that order; the first supported Java wins.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from thresher.core.errors import ThresherError

SUPPORTED = (17, 21)
_JVM_HOMES = Path("/usr/lib/jvm")


class JavaMissing(ThresherError):  # noqa: N818
    """No supported Java was found; the message lists the others. Install one before another start."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime of a supported version."""

    executable: Path
    major: int
    # The whole output of `java -version`, which differs between builds.
    version: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make a shell script, such as Spark's, find this Java."""
        home = self.executable.resolve().parents[1]
        if (home / "bin" / "java").exists():
            return {"JAVA_HOME": str(home)}
        # A shim, such as a version manager's: it is found on the PATH only.
        return {"JAVA_HOME": "", "PATH": os.pathsep.join((str(self.executable.parent), os.environ.get("PATH", "")))}


def find_java(environment: Mapping[str, str] | None = None, *, homes: Path = _JVM_HOMES) -> Java:
    """Return the first Java of a supported version. Raises `JavaMissing`, which says what to install."""
    seen: dict[Path, str] = {}
    for executable in _candidates(os.environ if environment is None else environment, homes):
        if executable in seen:
            continue
        major, version = _ask_version(executable)
        if major in SUPPORTED:
            return Java(executable=executable.absolute(), major=major, version=version)
        seen[executable] = "does not run" if major is None else f"is Java {major}"
    found = "".join(f"; {path} {verdict}" for path, verdict in seen.items())
    raise JavaMissing(
        f"Java 17 or 21 is needed and was not found{found}. "
        "Install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one."
    )


def _candidates(environment: Mapping[str, str], homes: Path) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    for directory in environment.get("PATH", "").split(os.pathsep):
        # Not `Path.is_file`, which raises if the directory may not be searched.
        if directory and os.path.isfile(executable := Path(directory) / "java"):  # noqa: PTH113
            yield executable
    yield from sorted(homes.glob("*/bin/java"))


def _ask_version(executable: Path) -> tuple[int | None, str]:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    text = answer.stderr + answer.stdout
    # 'openjdk version "17.0.15"', 'java version "1.8.0_402"', 'openjdk version "21" 2023-09-19'
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return (int(match.group(1)) if match and answer.returncode == 0 else None), text


def _main() -> int:
    quiet = "--quiet" in sys.argv[1:]
    try:
        java = find_java()
    except JavaMissing as error:
        if not quiet:
            sys.stderr.write(f"{error}\n")
        return 1
    if not quiet:
        sys.stdout.write(f"{java.executable}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
