"""The archive of a relay's leader: runs only while the relay leads, and never disturbs relaying."""

import threading
from pathlib import Path

import psycopg
import pytest

from tests.archive.outbox_place import DUE, WAITING, YOUNG, OutboxPlace, archiving
from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place
from thresher.archive.background import LeaderArchive
from thresher.core.errors import InvalidInput
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.observe.metric import Reading
from thresher.outbox import Message
from thresher.relay.report.metrics import ARCHIVE_FAMILIES, readings
from thresher.relay.settings import Settling
from thresher.service.health import Role
from thresher.service.report import ServiceSnapshot
from thresher.spark.session.session import Session

NOTHING = ServiceSnapshot(name="n", role=Role.LEADING, ready=True, shards=(), counts={}, driver={})


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    made = OutboxPlace(dsn, tmp_path / "archive")
    made.fill()
    return made


@pytest.fixture
def failing(place: OutboxPlace) -> LeaderArchive:
    """Return an archive that fails, because its directory is a file."""
    place.directory.write_text("")
    return LeaderArchive(place.job("files", seconds=100))


def figures(archive: LeaderArchive) -> dict[str, float]:
    found: list[Reading] = [each for each in readings(NOTHING, None, archive) if each.family in ARCHIVE_FAMILIES]
    return {each.family.name: each.value for each in found if isinstance(each.value, float | int)}


def test_a_harvest_archives_its_stamped_rows(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, tmp_path: Path
) -> None:
    at = Place(stack, dsn, topic_prefix)
    settings = at.settings(
        shards=1,
        producer_factory=PRODUCER,
        settling=Settling.STAMP,
        archive_after_seconds=1.0,
        archive_to=str(tmp_path / "archive"),
    )
    (tmp_path / "archive").mkdir()
    at.stash(*(Message(topic=at.topic, key=f"{n % 7}", value=f"{n}") for n in range(100)))
    with Harvest(settings, policy=POLICY, election=ElectionSettings(lease_seconds=20.0)) as harvest:
        assert len(at.read(100)) == 100
        eventually(lambda: at.sql("SELECT count(*) FROM outbox") == [(0,)], RELAYED_SECONDS)
        assert not harvest.alarms
    assert OutboxPlace.archived_in(tmp_path / "archive") == list(range(1, 101))


def test_a_relative_archive_place_is_refused(stack: Stack, dsn: str, topic_prefix: str) -> None:
    settings = Place(stack, dsn, topic_prefix).settings(archive_after_seconds=1.0, archive_to="here")
    with pytest.raises(InvalidInput, match="not an absolute path"):
        Harvest(settings).start()


def test_an_archive_failure_and_its_end_are_logged_and_counted(
    failing: LeaderArchive, place: OutboxPlace, caplog: pytest.LogCaptureFixture
) -> None:
    with failing.during("thresher/test"):
        eventually(lambda: failing.failures == 2, 30)
        (text,) = failing.alarms.values()
        assert "cannot be used for the archive" in text
        before = figures(failing)
        assert before["thresher_archived_records_total"] == 0
        assert before["thresher_archive_failures_total"] == 2
        assert 0 < before["thresher_archive_success_age_seconds"] < 60, "failures are counted from the first one on"
        place.directory.unlink()
        place.directory.mkdir()
        eventually(lambda: not failing.alarms, 30)
        shown = figures(failing)
    assert len([each for each in caplog.records if "relaying goes on" in each.message]) == 1
    assert shown["thresher_archived_records_total"] == DUE
    assert 0 <= shown["thresher_archive_success_age_seconds"] < 30
    assert len(place.ids()) == YOUNG + WAITING
    assert failing.success_age_seconds is None, "a standby archives nothing"


def test_a_leader_creates_no_archive_directory(place: OutboxPlace) -> None:
    archive = LeaderArchive(place.job("files", seconds=100))
    with archive.during("thresher/test"):
        eventually(lambda: "a relay creates none. Mount it" in "".join(archive.alarms.values()), 30)
        assert not place.directory.exists()
        place.directory.mkdir()
        eventually(lambda: archive.rows == DUE, 30)


def test_a_second_archiver_that_stays_is_an_alarm(place: OutboxPlace) -> None:
    archive = LeaderArchive(place.job("table", seconds=100))
    with psycopg.connect(place.dsn, autocommit=True) as other, archiving(other), archive.during("thresher/test"):
        eventually(lambda: "found another archiver" in "".join(archive.alarms.values()), 30)
        assert archive.failures == archive.rows == 0
        assert archive.success_age_seconds is not None
        assert archive.success_age_seconds > 1.5, "three runs, with a second between"
        other.close()
        eventually(lambda: archive.rows == DUE, 30)
        eventually(lambda: not archive.alarms, 30)


def test_no_error_ends_the_archive_thread(place: OutboxPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Event()

    def break_it(*_: object, **__: object) -> None:
        if not broken.is_set():
            broken.set()
            raise RuntimeError("a bug")

    archive = LeaderArchive(place.job("table", seconds=100))
    monkeypatch.setattr("thresher.archive.archiver.ArchiveTable.__init__", break_it, raising=True)
    with archive.during("thresher/test"):
        eventually(lambda: "RuntimeError: a bug" in "".join(archive.alarms.values()), 30)
        monkeypatch.undo()
        eventually(lambda: archive.rows == DUE, 30)


def test_the_end_of_a_term_stops_the_archive_between_batches(place: OutboxPlace) -> None:
    place.sql("INSERT INTO outbox (kafka_topic, dispatched_time) "
              "SELECT 't', now() - interval '1 day' FROM generate_series(1, 50_000)")  # fmt: skip
    archive = LeaderArchive(place.job("table", rows=1, seconds=100))
    with archive.during("thresher/test"):
        eventually(lambda: archive.rows > 0, 30)
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "archive"], 30)
    moved = len(place.archived_ids("table"))
    assert 0 < archive.rows == moved < 50_000
