"""`./run audit`: known vulnerabilities of what is pinned, licences, and secrets in the tree. It needs no network.

1. `requirements/vulnerabilities.json` holds what the package index said of each pinned release when `./run lock` ran. A
   release that is missing there, or has a vulnerability that nobody accepted with a reason, fails the audit. A release
   of which the index said nothing is counted as unknown, never as harmless.
2. The licences of the packages that a relay's users install are on the list below.
3. The jars of the installed PySpark and of the brokers are those of `requirements/jars.lock`: version, digest, licence.
   No index of vulnerabilities is asked for jars: a person compares their versions with advisories.
4. Each pinned package has a hash. No file of the repository holds a secret, names a registry, or tells to install
   Thresher by its name.

An audit without problems does not say that nothing is vulnerable: its last lines say of how much nothing is known.
"""

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from maintenance import jar_list
from thresher.devstack.jars import VERSIONS

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "requirements" / "vulnerabilities.json"
# Each licence is found in a package's licence expression, its classifiers or its licence field.
LICENCES = re.compile(
    r"Apache|\bMIT\b|BSD|ISC\b|PSF|Python Software Foundation|MPL-2\.0|Mozilla Public License 2\.0|LGPL|"
    r"Lesser General Public|0BSD",
    re.IGNORECASE,
)
SECRETS = re.compile(
    r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b"
    r"|\bpypi-[A-Za-z0-9_-]{50,}|\bxox[bp]-[0-9A-Za-z-]{20,}|\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\."
)
BY_NAME = re.compile(r"pip install (?:-\S+ )*['\"]?thresher\b")
REGISTRY = re.compile(r"^\s*--(?:extra-)?index-url|^\s*--find-links", re.MULTILINE)
# Keys that protect nothing: of the certificate that a test's proxy shows, and an invented one.
HARMLESS = frozenset({"tests/relay/tls/key.pem", "tests/unit/test_secrets.py"})


def pinned(path: Path) -> dict[str, str]:
    """Return the pinned versions of a requirements file by package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {name.lower(): version for name, version in found}


def unhashed(path: Path) -> Iterator[str]:
    """Yield a problem for each pinned package without a hash."""
    text = path.read_text(encoding="utf-8")
    for block in re.split(r"^(?=[A-Za-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]:
        if "--hash=sha256:" not in block:
            yield f"{path.name}: {block.split()[0]} has no hash"


def vulnerable(releases: Mapping[str, str], known: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the problems of pinned releases, and the releases of which nothing is known."""
    problems, unknown = [], []
    said, accepted = known.get("releases", {}), known.get("accepted", {})
    for name, version in sorted(releases.items()):
        release = f"{name}=={version}"
        if release not in said:
            problems.append(f"{release} was never asked for: run './run lock'")
        elif said[release] is None:
            unknown.append(release)
        else:
            problems += [f"{release}: {each}" for each in said[release] if not accepted.get(each)]
    return problems, unknown


def licences(names: Iterator[str]) -> Iterator[str]:
    """Yield a problem for each installed package whose licence is not on the list."""
    for name in names:
        try:
            about = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            # For another platform.
            continue
        told = [*(about.get_all("License-Expression") or []), *(about.get_all("License") or [])]
        classified = [each for each in about.get_all("Classifier") or [] if each.startswith("License")]
        if not LICENCES.search(" ".join([*told, *classified])):
            yield f"{name}: its licence is not on the list: {', '.join([*told, *classified]) or 'it names none'}"


def in_tree() -> Iterator[str]:
    """Yield a problem for each secret, registry or unsafe instruction in a file of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file() or path.stat().st_size > 2_000_000:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if name not in HARMLESS and (found := SECRETS.search(text)):
            yield f"{name}: it holds a secret: {found[0][:12]}…"
        if name != "maintenance/audit.py" and BY_NAME.search(text):
            yield f"{name}: it tells to install Thresher by its name, which is anyone's on an index"
        if name.startswith("requirements/") and REGISTRY.search(text):
            yield f"{name}: it names a registry"


def jars() -> tuple[list[str], int]:
    """Return the problems of the jars, and how many are listed."""
    listed = jar_list.read_list(jar_list.LIST.read_text(encoding="utf-8"))
    product, paths = jar_list.spark_jars()
    present = {product: jar_list.digests(paths)}
    present |= {f"kafka {version}": jar_list.locked(version) for version in VERSIONS}
    return list(jar_list.problems_of(listed, present)), sum(map(len, listed.values()))


def checked(unknown: int, releases: int, jars_listed: int) -> str:
    """Return what the audit says of vulnerabilities: what nothing is known of is never clean."""
    if unknown == releases:
        known = f"NOT CHECKED: the index said nothing of any of {releases} releases"
    elif unknown:
        known = f"checked for {releases - unknown} of {releases} releases, UNKNOWN for {unknown}"
    else:
        known = f"checked for {releases} releases"
    return f"vulnerabilities: {known}; NOT CHECKED for {jars_listed} jars (requirements/jars.lock names them)"


def index() -> str:
    """Return the address of the package index that this machine is configured for."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if chosen := os.environ.get(variable):
            return chosen
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if asked.returncode == 0 and asked.stdout.strip():
        return asked.stdout.strip()
    from pip._internal.models.index import PyPI  # noqa: PLC0415 - pip's own default

    return str(PyPI.simple_url)


def asked(base: str, name: str, version: str) -> list[str] | None:
    """Return the vulnerabilities that the index knows of a release; None if it does not say."""
    try:
        with urllib.request.urlopen(f"{base}/pypi/{name}/{version}/json", timeout=20) as answer:  # noqa: S310
            told = json.load(answer).get("vulnerabilities")
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return None if told is None else sorted(str(each["id"]) for each in told if not each.get("withdrawn"))


def refresh() -> None:
    """Ask the index about every pinned release, and write the answers."""
    base = re.sub(r"/simple/?$", "", index())
    releases = sorted(pinned(ROOT / "requirements" / "dev.txt").items())
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda release: asked(base, *release), releases))
    known = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {"accepted": {}}
    said = {f"{name}=={version}": told for (name, version), told in zip(releases, answers, strict=True)}
    KNOWN.write_text(json.dumps({"accepted": known["accepted"], "releases": said}, indent=1) + "\n", encoding="utf-8")
    unknown = sum(told is None for told in answers)
    print(f"vulnerabilities: {len(said)} releases, unknown of {unknown}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--refresh", action="store_true", help="ask the configured package index first")
    if parser.parse_args().refresh:
        refresh()
    files = sorted((ROOT / "requirements").glob("*.txt"))
    of_jars, jars_listed = jars()
    releases = {name: version for file in files for name, version in pinned(file).items()}
    found, unknown = vulnerable(releases, json.loads(KNOWN.read_text(encoding="utf-8")))
    problems = [
        *found,
        *(each for file in files for each in unhashed(file)),
        *licences(iter(sorted(pinned(ROOT / "requirements" / "relay.txt")))),
        *of_jars,
        *in_tree(),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"audit: {len(problems)} problems with licences, digests, secrets and known vulnerabilities")
    print(checked(len(unknown), len(releases), jars_listed))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
