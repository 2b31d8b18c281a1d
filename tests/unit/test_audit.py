"""`./run audit` finds what it looks for; and this repository passes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from maintenance.audit import BY_NAME, ROOT, SECRETS, checked, jars, licences, pinned, unhashed, vulnerable
from maintenance.jar_list import NAMED_BY_NONE, Listed, problems_of, read_list

RELEASES = {"good": "1.0", "bad": "2.0", "silent": "3.0"}
SAID = {"good==1.0": [], "bad==2.0": ["PYSEC-1"], "silent==3.0": None}


def test_the_repository_passes_its_audit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "maintenance.audit"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "NOT CHECKED for" in done.stdout


def test_known_vulnerabilities_fail_unless_accepted_with_a_reason() -> None:
    assert vulnerable(RELEASES, {"releases": SAID}) == (["bad==2.0: PYSEC-1"], ["silent==3.0"])
    assert vulnerable(RELEASES, {"releases": SAID, "accepted": {"PYSEC-1": ""}})[0]
    assert vulnerable(RELEASES, {"releases": SAID, "accepted": {"PYSEC-1": "not reached: we parse no XML"}})[0] == []


def test_a_release_that_was_never_asked_for_fails() -> None:
    assert vulnerable({"good": "1.1"}, {"releases": SAID})[0] == ["good==1.1 was never asked for: run './run lock'"]


def test_a_package_without_hash_or_licence_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("a==1 \\\n    --hash=sha256:ab\nb==2\nc==3 --hash=sha256:cd\n")
    assert list(unhashed(tmp_path / "r.txt")) == ["r.txt: b==2 has no hash"]
    assert list(licences(iter(["psycopg", "pyarrow", "no-such-package"]))) == []


@pytest.mark.parametrize(
    "text", ["-----BEGIN " + "PRIVATE KEY-----", "AKIA" + "A" * 16, "ghp_" + "a" * 36, "pypi-" + "a" * 60]
)
def test_a_secret_in_the_tree_is_found(text: str) -> None:
    assert SECRETS.search(f"x = '{text}'")


def test_an_instruction_to_install_by_name_is_found() -> None:
    name = "thresher"
    assert BY_NAME.search(f"pip install '{name}[relay]'")
    assert BY_NAME.search(f"pip install --no-cache-dir {name}")
    assert not BY_NAME.search("pip install '.[relay]'")


def test_an_image_has_the_pinned_versions_of_the_tests_and_nothing_by_name() -> None:
    everything = pinned(ROOT / "requirements" / "dev.txt")
    for name in ("relay.txt", "build.txt"):
        part = pinned(ROOT / "requirements" / name)
        assert {each: everything.get(each) for each in part} == part
    assert {"pyspark", "confluent-kafka", "adbc-driver-postgresql"} <= set(pinned(ROOT / "requirements" / "relay.txt"))
    lines = (ROOT / "examples" / "sidecar" / "Containerfile").read_text().replace("\\\n", "").splitlines()
    installs = [part for line in lines if line.startswith("RUN") for part in line.split("&&") if "pip " in part]
    assert installs
    assert [each for each in installs if "--require-hashes" not in each and "--no-deps" not in each] == []
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert [word for word in copied if not (ROOT / word).exists()] == []


def test_what_is_not_known_is_never_called_clean() -> None:
    assert checked(62, 62, 379).startswith(
        "vulnerabilities: NOT CHECKED: the index said nothing of any of 62 releases;"
    )
    assert checked(1, 62, 379).startswith("vulnerabilities: checked for 61 of 62 releases, UNKNOWN for 1;")
    for unknown in (0, 1, 62):
        assert checked(unknown, 62, 379).endswith("NOT CHECKED for 379 jars (requirements/jars.lock names them)")


def test_a_jar_that_changed_or_is_not_listed_is_named() -> None:
    listed = read_list("# jars\n[pyspark 1]\nab  a-1.jar  MIT\ncd  b-1.jar  BSD, by hand\n[kafka 2]\n")
    assert listed == {
        "pyspark 1": {
            "a-1.jar": Listed(sha256="ab", licence="MIT"),
            "b-1.jar": Listed(sha256="cd", licence="BSD, by hand"),
        },
        "kafka 2": {},
    }
    good = {"pyspark 1": {"a-1.jar": "ab", "b-1.jar": "cd"}, "kafka 2": {}}
    assert list(problems_of(listed, good)) == []
    for present, named in (
        ({"a-1.jar": "ff", "b-1.jar": "cd"}, "a-1.jar"),
        ({"a-1.jar": "ab"}, "b-1.jar"),
        ({"a-1.jar": "ab", "b-1.jar": "cd", "c-1.jar": "ef"}, "c-1.jar"),
    ):
        (problem,) = problems_of(listed, {**good, "pyspark 1": present})
        assert f" {named} is not the jar" in problem
    assert len(list(problems_of(listed, {"pyspark 2": good["pyspark 1"], "kafka 2": {}}))) == 2
    unnamed = {"pyspark 1": {"a-1.jar": Listed(sha256="ab", licence=NAMED_BY_NONE)}}
    (problem,) = problems_of(unnamed, {"pyspark 1": {"a-1.jar": "ab"}})
    assert "names no licence" in problem


def test_each_jar_of_spark_and_of_the_brokers_is_listed() -> None:
    problems, count = jars()
    assert problems == []
    assert count > 300
