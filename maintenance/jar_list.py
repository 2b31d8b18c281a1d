"""`requirements/jars.lock`: the jars that PySpark brings and those of the local brokers, with digests and licences.

Written by `./run lock`, compared with the installed PySpark and with the brokers' lock files by `./run audit`. A line
holds a jar's SHA-256, its file's name (module and version) and its licence. The licence is what the jar names in its
manifest, its POM or its licence file. `by hand` follows a licence that a jar does not name: a person looked it up.
"""

import hashlib
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from thresher.devstack import jars

LIST = Path(__file__).parents[1] / "requirements" / "jars.lock"
NAMED_BY_NONE = "unknown"
_BY_HAND = "by hand"
# The licences that we know, by what jars call them. The first that fits is taken: of several, one may be chosen.
_NAMES = {
    "Apache-2.0": r"Apache|\bASF?L\b|\bAL 2",
    "MIT": r"\bMIT\b|\bBouncy Castle\b",
    "BSD": r"\bBSD\b|Eclipse Distribution|\bEDL\b|Go License|Redistribution and use in source and binary forms",
    "CC0": r"\bCC0\b|Public Domain",
    "UPL": r"Universal Permissive|\bUPL\b",
    "EPL": r"\bEPL\b|Eclipse Public",
    "CDDL": r"\bCDDL\b|COMMON DEVELOPMENT AND DISTRIBUTION",
    "MPL": r"\bMPL\b|Mozilla Public",
    "GPL with the class path exception": r"class ?path exception|GPL2 w/ CPE|\bCPE\b",
    "LGPL": r"\bLGPL\b|Lesser General Public",
    "ICU": r"Unicode|\bICU\b",
}
# Jars that name no licence: projects whose licence is the same in all their releases.
_LOOKED_UP = {
    "Apache-2.0": (
        "RoaringBitmap", "breeze", "chill", "datasketches", "derby", "hash4j", "hive", "jackson-module-scala", "json4s",
        "jsr305", "kafka", "kubernetes-client", "kubernetes-httpclient", "libfb303", "lz4-java", "metrics-core", "orc-",
        "oro-", "parquet-", "rocksdbjni", "scala-", "stax-api", "tink-", "vertx-", "zookeeper",
    ),
    "MIT": ("algebra_", "cats-kernel", "pcollections", "slf4j-", "spire"),
    "BSD": ("antlr-runtime", "antlr4-runtime", "arpack", "blas-", "jts-core", "lapack-", "paranamer", "re2j", "xz-"),
    "CDDL": ("jta-", "transaction-api"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A jar as the list has it."""

    sha256: str
    licence: str


def read_list(text: str) -> dict[str, dict[str, Listed]]:
    """Return the jars by product, such as `pyspark 4.2.0`, and by file name."""
    found: dict[str, dict[str, Listed]] = {}
    product = ""
    for line in text.splitlines():
        if line.startswith("["):
            product = line.strip("[]")
            found[product] = {}
        elif line and not line.startswith("#"):
            digest, name, licence = line.split(maxsplit=2)
            found[product][name] = Listed(sha256=digest, licence=licence)
    return found


def spark_jars() -> tuple[str, list[Path]]:
    """Return the installed PySpark with its version, and the jars that it brings."""
    place = Path(str(metadata.distribution("pyspark").locate_file("pyspark"))) / "jars"
    return f"pyspark {metadata.version('pyspark')}", sorted(place.glob("*.jar"))


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    paths = list(paths)
    with ThreadPoolExecutor(4) as pool:
        return dict(zip((path.name for path in paths), pool.map(_digest, paths), strict=True))


def locked(version: str) -> dict[str, str]:
    """Return the SHA-256 of a broker's jars by file name, from its lock file."""
    return {jar.file: jar.sha256 for jar in jars.read_lock(version)}


def problems_of(listed: Mapping[str, Mapping[str, Listed]], present: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield each difference between the list and the jars that are present, and each licence that nobody knows."""
    for product in sorted(listed.keys() | present.keys()):
        if product not in listed or product not in present:
            yield f"the jars of {product} are {'not listed' if product in present else 'listed and gone'}: ./run lock"
            continue
        for name in sorted(listed[product].keys() | present[product].keys()):
            has, is_now = listed[product].get(name), present[product].get(name)
            if has is None or is_now is None or has.sha256 != is_now:
                yield f"{product}: {name} is not the jar that requirements/jars.lock lists: run './run lock'"
            elif has.licence == NAMED_BY_NONE:
                yield f"{product}: {name} names no licence that is known: look it up in maintenance/jar_list.py"


def licence_of(jar: Path) -> str:
    """Return the licence that a jar names, or else the one that a person looked up."""
    with zipfile.ZipFile(jar) as opened:
        for told in _told(opened, jar.stem):
            if known := _known(told):
                return known
    for licence, starts in _LOOKED_UP.items():
        if jar.name.startswith(starts):
            return f"{licence}, {_BY_HAND}"
    return NAMED_BY_NONE


def _told(jar: zipfile.ZipFile, stem: str) -> Iterator[str]:
    names = jar.namelist()
    if "META-INF/MANIFEST.MF" in names:
        manifest = re.sub(r"\r?\n ", "", _text(jar, "META-INF/MANIFEST.MF"))
        yield from re.findall(r"^Bundle-License: *(.*)", manifest, re.MULTILINE)
    poms = [name for name in names if name.startswith("META-INF/maven/") and name.endswith("/pom.xml")]
    # A jar may hold others, with their POMs.
    for name in poms:
        if stem.startswith(name.split("/")[3]):
            for part in re.findall(r"<licenses>(.*?)</licenses>", _text(jar, name), re.DOTALL):
                yield " ".join(re.findall(r"<name>(.*?)</name>", part, re.DOTALL))
    for name in names:
        if re.fullmatch(r"(META-INF/)?(LICENSE|COPYING)[^/]*", name, re.IGNORECASE):
            yield _text(jar, name)[:2_000]


def _known(told: str) -> str | None:
    return next((name for name, pattern in _NAMES.items() if re.search(pattern, told, re.IGNORECASE)), None)


def _text(jar: zipfile.ZipFile, name: str) -> str:
    return jar.read(name).decode(errors="replace")


def _digest(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _section(product: str, found: Mapping[str, str], places: Mapping[str, Path]) -> Iterator[str]:
    yield f"[{product}]\n"
    yield from (f"{found[name]}  {name}  {licence_of(places[name])}\n" for name in sorted(found))


def main() -> None:
    """Write the list. The brokers' jars are fetched if they are not in the cache."""
    product, paths = spark_jars()
    lines = ["# SHA-256, file and licence of each jar. Written by `./run lock`.\n"]
    lines += _section(product, digests(paths), {path.name: path for path in paths})
    for version in jars.VERSIONS:
        jars.classpath(version)
        place = jars.directory_of(version)
        found = locked(version)
        lines += _section(f"kafka {version}", found, {name: place / name for name in found})
    LIST.write_text("".join(lines), encoding="utf-8")
    print(f"jars: {len(lines) - 1 - len(read_list(''.join(lines)))} listed", file=sys.stderr)


if __name__ == "__main__":
    main()
