"""Writes the lock files of the brokers' jars: resolves what a broker needs, fetches it, and notes every digest.

Run by `./run lock`. Trust on first use: look at the difference before committing it.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from thresher.core.java import find_java
from thresher.devstack import jars

# Kafka's own distribution adds a logging backend to what its artifact names.
LOGGING = {
    "4.2.1": ("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",),
    "3.9.1": ("org.slf4j:slf4j-reload4j:1.7.36", "ch.qos.reload4j:reload4j:1.2.25"),
}


def resolve(version: str, work: Path) -> list[str]:
    pattern = f"{work}/[organisation]~[artifact]~[revision].[ext]"
    command: list[str | Path] = [find_java().executable, "-jar", jars.ivy(), "-cache", work / "cache"]
    command += ["-dependency", "org.apache.kafka", "kafka_2.13", version, "-confs", "default"]
    command += ["-types", "jar", "bundle", "-retrieve", pattern]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return [path.stem.replace("~", ":") for path in sorted(work.glob("*.jar"))]


def main() -> None:
    for version in jars.VERSIONS:
        with tempfile.TemporaryDirectory() as scratch:
            coordinates = [*resolve(version, Path(scratch)), *LOGGING[version]]
            fetched = Path(scratch) / "fetched"
            fetched.mkdir()
            wanted = tuple(
                jars.Jar(organisation=organisation, module=module, revision=revision, sha256="")
                for organisation, module, revision in (line.split(":") for line in sorted(set(coordinates)))
            )
            jars.fetch(wanted, fetched)
            lines = [
                f"{hashlib.sha256((fetched / jar.file).read_bytes()).hexdigest()}  "
                f"{jar.organisation}:{jar.module}:{jar.revision}\n"
                for jar in wanted
            ]
        header = f"# The jars of Kafka {version}: SHA-256 and coordinates. Written by `./run lock`.\n"
        jars.lock_path(version).write_text(header + "".join(lines), encoding="utf-8")
        print(f"kafka {version}: {len(lines)} jars")


if __name__ == "__main__":
    main()
