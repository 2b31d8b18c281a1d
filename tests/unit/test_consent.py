"""What commands do that ask before they change something, without a terminal to ask on."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.in_process import thresher
from thresher.cli.queue import dead
from thresher.cli.stepping_over import step_over_batches
from thresher.core.errors import InvalidInput
from thresher.kafka.unreadable_batch import Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A place before a batch that cannot be read."""

    batch: Unreadable


@pytest.mark.parametrize("chosen", [["--all"], ["--queue", "orders"]])
def test_letters_are_not_dropped_without_a_terminal(chosen: list[str]) -> None:
    refused = thresher(["queue", "dead", "drop", *chosen])
    assert (refused.returncode, refused.stdout) == (2, b"")
    told = refused.stderr.decode()
    assert f"queue dead drop {chosen[0]} asks first, and there is no terminal to ask on: add --yes" in told


def test_letters_that_come_after_the_question_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text("bootstrap-servers: k:1\nmessage-topic: messages\nmarker-topic: markers\n")
    wanted: list[bool] = []

    def change(_: object, matches: Callable[[Any], bool]) -> int:
        wanted.append(matches(SimpleNamespace(id="0-1", letter=SimpleNamespace(queue=b"orders"))))
        return 0

    monkeypatch.setattr("thresher.tracker.dead.dead_letters", lambda _: [])
    monkeypatch.setattr("thresher.tracker.dead.drop", change)
    monkeypatch.setattr(dead, "require_terminal", lambda _: None)
    answer = thresher(["queue", "dead", "drop", "--all", "-c", str(path)])
    assert (answer.returncode, answer.stdout) == (0, b"0 dead letters were dropped\n"), answer.stderr
    assert wanted == [False]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_refused_step_over_shows_what_it_found(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    moved: list[Stuck] = []
    stuck = [Stuck(batch=Unreadable(first=5, after=8))]

    def ask(*, yes: bool) -> None:
        step_over_batches(
            "queue step-over",
            lambda: stuck,
            moved.append,
            where=lambda _: "orders: partition 0",
            plain=asdict,
            lost="They are gone",
            yes=yes,
            as_json=as_json,
        )

    with pytest.raises(InvalidInput, match="queue step-over asks first, and there is no terminal"):
        ask(yes=False)
    shown = capsys.readouterr()
    assert "orders: partition 0, offsets 5 to 7 cannot be read" in (shown.err if as_json else shown.out)
    assert moved == []
    ask(yes=True)
    assert moved == stuck
    told = capsys.readouterr().out
    assert json.loads(told)["batches"] if as_json else "1 batch was stepped over" in told
