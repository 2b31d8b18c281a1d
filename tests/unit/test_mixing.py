"""The seed decides the schedule of a random soak, and no kind of fault is left out."""

import functools
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import tests.queue.mixed_subject as queues
import tests.relay.elected_subject as elected
import tests.relay.mixed_subject as relay
import tests.tail.mixed_subject as tail
from tests.faults import mixed_run
from tests.faults.fault_schedule import Kinds, schedule


@dataclass(frozen=True, slots=True)
class Mix:
    """A subject's kinds of faults by the number of nodes, and the parts of its scene."""

    kinds: Callable[[int], Kinds]
    parts: tuple[type, ...]


MIXES = [
    pytest.param(Mix(relay.relay_kinds, relay.PARTS), id="relay"),
    pytest.param(Mix(functools.partial(relay.relay_kinds, backlog=True), relay.PARTS), id="relay with a backlog"),
    pytest.param(Mix(elected.elected_kinds, elected.PARTS), id="elected relays"),
    pytest.param(Mix(tail.tail_kinds, relay.PARTS), id="tail"),
    pytest.param(Mix(queues.queue_kinds, queues.PARTS), id="queues"),
]
pytestmark = pytest.mark.parametrize("mix", MIXES)


def test_a_seed_gives_one_schedule_and_another_seed_another(mix: Mix) -> None:
    assert list(schedule(7, 600, mix.kinds(1))) == list(schedule(7, 600, mix.kinds(1)))
    assert list(schedule(7, 600, mix.kinds(1))) != list(schedule(8, 600, mix.kinds(1)))


def test_a_longer_run_begins_as_the_shorter_one(mix: Mix) -> None:
    short = list(schedule(7, 100, mix.kinds(1)))
    assert list(schedule(7, 600, mix.kinds(1)))[: len(short)] == short


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_kind_of_fault_comes_before_any_exceeds_its_share(mix: Mix, nodes: int) -> None:
    dealt = {kind: times for kind, (times, _) in mix.kinds(nodes).items()}
    for seed in range(5):
        deck = [fault.kind for fault in schedule(seed, 3600, mix.kinds(nodes))][: sum(dealt.values())]
        assert {kind: deck.count(kind) for kind in dealt} == dealt


def test_faults_come_in_order_and_within_the_time(mix: Mix) -> None:
    times = [fault.at for fault in schedule(3, 300, mix.kinds(1))]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] < 300


@pytest.mark.parametrize("nodes", [1, 3])
def test_brokers_are_drawn_from_the_existing_nodes(mix: Mix, nodes: int) -> None:
    faults = schedule(3, 3600, mix.kinds(nodes))
    drawn = {fault.parameters["node"] for fault in faults if "node" in fault.parameters}
    assert drawn == set(range(1, nodes + 1))


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_kind_of_fault_fits_one_part_of_the_scene(mix: Mix, nodes: int) -> None:
    for kind, (_, parameters) in mix.kinds(nodes).items():
        parts = (*mixed_run.PARTS, *mix.parts)
        (act,) = (found for part in parts if (found := getattr(part, kind.replace("-", "_"), None)) is not None)
        inspect.signature(act).bind(object(), **parameters(random.Random(1)))
