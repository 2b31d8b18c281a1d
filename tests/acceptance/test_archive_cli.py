"""`thresher archive`, from a shell."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.archive.outbox_place import DUE, WAITING, YOUNG, OutboxPlace, archiving
from tests.in_process import thresher as in_process
from tests.processes import environment, eventually
from thresher.archive.archiver import Archiver

ALL = Counter(range(1, DUE + YOUNG + WAITING + 1))


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    made = OutboxPlace(dsn, tmp_path / "archive")
    made.fill()
    return made


@pytest.fixture
def asked(dsn: str) -> Any:
    def ask(*arguments: str, code: int = 0) -> str:
        done = in_process(["archive", *arguments, "--ds", dsn])
        assert done.returncode == code, done.stderr.decode()
        return (done.stdout if code == 0 else done.stderr).decode()

    return ask


def test_an_operator_archives_to_a_table_and_to_files(place: OutboxPlace, asked: Any) -> None:
    hour = ("--older-than", "3600")
    assert asked("--dry-run") == '0 rows would be moved to "outbox_archive"\n'
    assert json.loads(asked(*hour, "--dry-run", "--json")) == {"rows": DUE, "to": '"outbox_archive"'}
    assert asked() == '0 rows were moved to "outbox_archive"\n'
    assert asked(*hour) == f'{DUE} rows were moved to "outbox_archive"\n'
    assert place.everything("table") == ALL
    place.sql("UPDATE outbox SET dispatched_time = now() - interval '1 day' WHERE dispatched_time IS NOT NULL")
    told = json.loads(asked(*hour, "--to", str(place.directory), "--batch-rows", "2", "--json"))
    assert (told["rows"], told["to"], told["stopped"]) == (YOUNG, str(place.directory), False)
    assert sorted(told["files"]) == [str(path) for path in place.files]
    assert len(place.ids()) == WAITING


def test_the_new_directory_option_replaces_a_lost_directory(place: OutboxPlace, asked: Any) -> None:
    to = ("--older-than", "3600", "--to", str(place.directory))
    asked(*to)
    place.directory.rename(place.directory.with_name("lost"))
    assert "run 'thresher archive --new-directory' once" in asked(*to, code=4)
    assert "0 rows were moved" in asked(*to, "--new-directory")
    assert "0 rows were moved" in asked(*to)
    assert "needs a directory" in asked("--new-directory", code=2)


def test_only_a_dry_run_counts_rows(place: OutboxPlace, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(_: Archiver) -> int:
        raise AssertionError("a count looks at the whole table")

    monkeypatch.setattr(Archiver, "count", count)
    assert asked("--older-than", "3600") == f'{DUE} rows were moved to "outbox_archive"\n'
    assert place.everything("table") == ALL


def test_an_impossible_archive_prints_one_line_and_changes_nothing(
    place: OutboxPlace, asked: Any, tmp_path: Path
) -> None:
    assert "there is no table" in asked("--outbox", "none", code=4)
    assert "cannot be used for the archive" in asked("--to", str(tmp_path / "no" / "such"), code=4)
    for seconds in ("nan", "inf", "-1"):
        assert "Invalid value for '--older-than'" in asked("--older-than", seconds, code=2)
    with psycopg.connect(place.dsn, autocommit=True) as other, archiving(other):
        assert "another archiver works on" in asked("--older-than", "3600", code=1)
    assert place.sql("CREATE TABLE foreign_table (id int)") == []
    assert "only an outbox in Thresher's own shape" in asked("--outbox", "foreign_table", code=4)
    assert Counter(place.ids()) == ALL


def test_the_archive_reads_its_settings_from_a_relays_file(place: OutboxPlace, tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    base = f"name: n\ndata_source: {place.dsn}\nkafka:\n  bootstrap.servers: localhost:1\n"
    file.write_text(f"{base}settle: stamp\narchive_after_seconds: 3600\narchive_to: {place.directory}\n")
    told = in_process(["archive", "-c", str(file), "--json"])
    assert json.loads(told.stdout)["rows"] == DUE, told.stderr
    assert place.everything("files") == ALL
    file.write_text(f"{base}")
    refused = in_process(["archive", "-c", str(file)])
    assert (refused.returncode, b"use 'settle: stamp'" in refused.stderr) == (2, True)
    file.write_text(f"{base}archive_after_seconds: 3600\narchive_to: here\n")
    refused = in_process(["config", "check", "-c", str(file)])
    assert refused.returncode == 2
    assert b"archive_to: 'here' is not an absolute path" in refused.stderr
    file.write_text(f"{base}archive_after_seconds: 3600\n")
    refused = in_process(["config", "check", "-c", str(file)])
    assert b"archive_after_seconds: rows that are deleted cannot be archived" in refused.stderr


def test_a_signal_stops_the_archiver_after_the_current_batch(place: OutboxPlace) -> None:
    place.sql("INSERT INTO outbox (kafka_topic, dispatched_time) "
              "SELECT 't', now() - interval '1 day' FROM generate_series(1, 20_000)")  # fmt: skip
    command = ["archive", "--ds", place.dsn, "--older-than", "3600", "--batch-rows", "1", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    eventually(lambda: place.sql("SELECT to_regclass('outbox_archive') IS NOT NULL") == [(True,)], 60)
    eventually(lambda: place.archived_ids("table"), 60)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    told = json.loads(output)
    assert told["stopped"]
    assert 0 < told["rows"] == len(place.archived_ids("table")) < 20_000
    assert len(place.ids()) + told["rows"] == 20_000 + sum(ALL.values())
