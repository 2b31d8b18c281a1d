"""The logs of a failed test are kept, although the test removes its directory."""

import shutil
from pathlib import Path

import pytest

from tests.kept_logs import KeptLogs
from tests.processes import eventually


@pytest.fixture
def places(tmp_path: Path) -> Path:
    made = tmp_path / "places"
    (made / "stack" / "kafka-1" / "data" / "topic-0").mkdir(parents=True)
    (made / "stack" / "kafka-1" / "log").write_text("the broker's log")
    (made / "stack" / "kafka-1" / "data" / "topic-0" / f"{0:020}.log").write_text("a segment")
    (made / "relay.log").write_text("x" * 3_000_000 + "the end")
    (made / "notes.txt").write_text("no log")
    return made


def test_a_failed_tests_logs_outlive_their_directory(places: Path, tmp_path: Path) -> None:
    with KeptLogs(places, tmp_path / "failures") as kept:
        eventually(lambda: len(list(kept.links.iterdir())) == 2, 30)
        with (places / "relay.log").open("a") as log:
            log.write(", and more")
        shutil.rmtree(places / "stack")
        place = kept.save("tests/a.py::test_it[x/y]")
    assert place == tmp_path / "failures" / "tests_a.py_test_it_x_y_"
    found = {each.name: each.read_text() for each in place.iterdir()}
    assert set(found) == {"stack__kafka-1__log.log", "relay.log"}
    assert found["stack__kafka-1__log.log"] == "the broker's log"
    assert found["relay.log"].endswith("the end, and more")
    assert len(found["relay.log"]) == 2_000_000


def test_each_test_keeps_only_its_own_logs(places: Path, tmp_path: Path) -> None:
    with KeptLogs(places, tmp_path / "failures") as kept:
        kept.look()
        shutil.rmtree(places)
        places.mkdir()
        kept.forget()
        assert kept.save("another") is None
    assert not list(tmp_path.glob("thresher-logs-*"))
