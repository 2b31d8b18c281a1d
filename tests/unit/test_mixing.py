"""The schedule of the random soak is the seed's, and leaves no kind of fault out."""

import inspect
import random

import pytest

from tests.faults import mixed_run
from tests.faults.fault_schedule import schedule
from tests.relay import mixed_subject
from tests.relay.mixed_subject import relay_kinds

PARTS = (*mixed_run.PARTS, *mixed_subject.PARTS)


def test_a_seed_gives_one_schedule_and_another_seed_another() -> None:
    assert list(schedule(7, 600, relay_kinds())) == list(schedule(7, 600, relay_kinds()))
    assert list(schedule(7, 600, relay_kinds())) != list(schedule(8, 600, relay_kinds()))


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    short = list(schedule(7, 100, relay_kinds()))
    assert list(schedule(7, 600, relay_kinds()))[: len(short)] == short


def test_every_kind_comes_before_any_comes_more_often_than_it_is_dealt() -> None:
    for nodes in (1, 3):
        dealt = {kind: times for kind, (times, _) in relay_kinds(nodes).items()}
        for seed in range(5):
            deck = [fault.kind for fault in schedule(seed, 3600, relay_kinds(nodes))][: sum(dealt.values())]
            assert {kind: deck.count(kind) for kind in dealt} == dealt


def test_faults_come_in_order_and_within_the_time() -> None:
    times = [fault.at for fault in schedule(3, 300, relay_kinds())]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] < 300


def test_brokers_are_drawn_among_those_that_there_are() -> None:
    for nodes in (1, 3):
        drawn = {
            fault.parameters["node"] for fault in schedule(3, 3600, relay_kinds(nodes)) if "node" in fault.parameters
        }
        assert drawn == set(range(1, nodes + 1))


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_kind_is_what_one_part_of_the_scene_can_do_with_what_is_drawn_for_it(nodes: int) -> None:
    for kind, (_, parameters) in relay_kinds(nodes).items():
        (act,) = (found for part in PARTS if (found := getattr(part, kind.replace("-", "_"), None)) is not None)
        inspect.signature(act).bind(object(), **parameters(random.Random(1)))
