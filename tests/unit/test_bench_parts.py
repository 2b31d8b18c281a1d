"""The parts of a bench that are measured."""

import argparse
from pathlib import Path

import pytest

from bench.measuring.parts import add_parts, chosen_parts
from bench.relay import PARTS, chosen


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parts(parser, ("a", "b", "c"))
    return parser.parse_args(given)


@pytest.mark.parametrize(
    ("given", "usual", "parts"),
    [
        ([], [], ["a", "b", "c"]),
        ([], ["c", "a"], ["a", "c"]),
        (["--only", "c,b"], ["a"], ["b", "c"]),
        (["--skip", "b"], [], ["a", "c"]),
        (["--skip", "a"], ["a", "c"], ["c"]),
        (["--only", "a,b", "--skip", "b"], [], ["a"]),
    ],
)
def test_parts_are_chosen_and_left_out(given: list[str], usual: list[str], parts: list[str]) -> None:
    assert chosen_parts(options(*given), ("a", "b", "c"), usual=usual) == parts


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_an_unknown_part_is_refused_with_the_known_ones(option: str) -> None:
    with pytest.raises(SystemExit, match=f"{option}: 'd' is none of a, b, c"):
        chosen_parts(options(option, "a,d"), ("a", "b", "c"))


def test_the_relays_bench_leaves_out_what_makes_no_sense() -> None:
    asked = argparse.Namespace(only=None, skip=None, peer_binary=None, delivery="exactly-once")
    assert chosen(asked) == [part for part in PARTS if part != "peer"]
    asked.delivery = "at-least-once"
    assert chosen(asked) == ["throughput", "latency", "noisy", "idle", "sizes"]
    asked.only = "peer"
    with pytest.raises(SystemExit, match="needs --peer-binary"):
        chosen(asked)


def test_no_program_of_ours_names_its_database_by_flag() -> None:
    """Other users of the machine can read command lines."""
    root = Path(__file__).parents[2]
    ours = [
        path
        for place in ("bench", "soak", "examples", "src/thresher/cli/demo")
        for path in root.glob(f"{place}/**/*.py")
    ]
    assert len(ours) > 40
    assert not [path for path in ours if '"--ds"' in path.read_text()]
