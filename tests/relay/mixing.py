"""The schedule of a random soak: which fault comes when, with which parameters. Pure: the seed gives all of it.

Kinds are dealt from a shuffled deck that has each of them, the frequent ones more often, so that a run of a few minutes
meets every kind and two runs never in the same order. Faults overlap: what lasts goes on while others come. On several
nodes, what happens to a broker or its wire happens to one that is drawn, and there are kinds for such a cluster alone.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.relay import drift
from thresher.testing.proxy import Api

_SHORTEST_GAP_SECONDS, _LONGEST_GAP_SECONDS = 0.2, 8.0
_APIS = {
    "end-txn": Api.END_TXN,
    "produce": Api.PRODUCE,
    "init-producer-id": Api.INIT_PRODUCER_ID,
    "add-partitions": Api.ADD_PARTITIONS_TO_TXN,
    "find-coordinator": Api.FIND_COORDINATOR,
    "metadata": Api.METADATA,
    "fetch": Api.FETCH,
    "list-offsets": Api.LIST_OFFSETS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: so many seconds after the beginning."""

    at: float
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return it as it is printed."""
        told = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        return f"{self.at:7.1f} s  {self.kind}{': ' if told else ''}{told}"


def api_of(name: str) -> Api:
    """Return the API that a schedule names."""
    return _APIS[name]


Parameters = Callable[[random.Random], dict[str, Any]]


def _lasting(shortest: float, longest: float) -> Parameters:
    return lambda draw: {"seconds": round(draw.uniform(shortest, longest), 1)}


def _nothing(_: random.Random) -> dict[str, Any]:
    return {}


def _pause(draw: random.Random) -> dict[str, Any]:
    # Beyond every time-out now and then: silence 3 s, deafness 10 s, a transaction 15 s.
    return {"seconds": round(draw.choice([draw.uniform(0.2, 3), draw.uniform(3, 12), draw.uniform(12, 22)]), 1)}


def _one(draw: random.Random) -> dict[str, Any]:
    # Of those that are there when it comes to it.
    return {"which": draw.randrange(60)}


def _wire(draw: random.Random) -> dict[str, Any]:
    verdict = draw.choice(["cut", "drop", "delay", "delay", "hold"])
    most = {"delay": 9.5, "hold": 20.0}.get(verdict, 0.0)
    return {
        "api": draw.choice(["end-txn", "end-txn", "produce", "produce", *_APIS]),
        "side": draw.choice(["request", "answer"]),
        "verdict": verdict,
        "seconds": round(draw.uniform(0.1, most), 1) if most else 0.0,
        "times": draw.choice([1, 1, 1, 2, 4]),
    }


def _layout(draw: random.Random) -> dict[str, Any]:
    return {"shards": draw.choice([1, 2, 3, 4, 5]), "transforms": draw.choice([True, False])}


def _newcomer(draw: random.Random) -> dict[str, Any]:
    return {**_layout(draw), "older": draw.choice(["lives", "stopped"]), **_pause(draw)}


def _restart(draw: random.Random) -> dict[str, Any]:
    return {**_layout(draw), "how": draw.choice(["term", "kill"])}


def _rows(draw: random.Random) -> dict[str, Any]:
    return {"rows": draw.choice([1, 3, 20])}


def _clock(draw: random.Random) -> dict[str, Any]:
    return {"offset": draw.choice(drift.OFFSETS), **_lasting(2, 12)(draw)}


def _half(draw: random.Random) -> dict[str, Any]:
    return {
        "half": draw.choice(["coordinator", "coordinator", "leader"]),
        "verdict": draw.choice(["cut", "drop"]),
        **_lasting(1, 15)(draw),
    }


# How often a deck has it, and what its parameters are drawn by.
_KINDS: Mapping[str, tuple[int, Parameters]] = {
    "kill-worker": (3, _one),
    "kill-daemon": (1, _nothing),
    "kill-driver": (1, _nothing),
    "kill-jvm": (1, _nothing),
    "pause-worker": (3, lambda draw: {**_one(draw), **_pause(draw)}),
    "pause-driver": (1, _pause),
    "pause-jvm": (1, _pause),
    "newcomer": (2, _newcomer),
    "restart": (1, _restart),
    "end-sessions": (3, _rows),
    "postgres-fast": (1, _lasting(0, 3)),
    "postgres-immediate": (1, _lasting(0, 3)),
    "postgres-kill": (1, _lasting(0, 3)),
    "raise-partitions": (1, _nothing),
    "topic-denied": (1, _lasting(2, 12)),
    "other-topic-denied": (1, _lasting(2, 12)),
    "producer-denied": (1, _lasting(1, 5)),
    "limit-lowered": (1, _lasting(2, 12)),
    "topic-missing": (2, _lasting(1, 20)),
    "bad-rows": (3, _rows),
    "large-rows": (2, _rows),
    "choosy-rows": (3, _rows),
    "table-locked": (2, _lasting(0.5, 15)),
    "long-transaction": (2, _lasting(5, 60)),
    "ids-restart": (2, _nothing),
    "clock": (3, _clock),
}
# Of these, a node is drawn.
_NODE_KINDS: Mapping[str, tuple[int, Parameters]] = {
    "broker-kill": (1, _lasting(0, 4)),
    "broker-stop": (1, _lasting(0, 4)),
    "broker-pause": (1, _lasting(0.5, 12)),
    "wire": (10, _wire),
    "wire-cut-all": (1, _nothing),
    "wire-pause": (1, _lasting(0.5, 12)),
}
# So with several nodes: one that is away for longer is missed less.
_CLUSTER_KINDS: Mapping[str, tuple[int, Parameters]] = {
    "broker-kill": (2, _lasting(0, 10)),
    "broker-stop": (2, _lasting(0, 10)),
    "half-reachable": (3, _half),
}


def kinds(nodes: int = 1) -> Mapping[str, tuple[int, Parameters]]:
    """Return every kind there is on so many nodes: how often a deck has it, and what its parameters are drawn by."""
    of_nodes = _NODE_KINDS if nodes == 1 else {**_NODE_KINDS, **_CLUSTER_KINDS}
    found = {**_KINDS, **{kind: (times, _on_a_node(nodes, drawn)) for kind, (times, drawn) in of_nodes.items()}}
    return found if nodes == 1 else {**found, "leaders-return": (3, _nothing)}


def _on_a_node(nodes: int, parameters: Parameters) -> Parameters:
    return lambda draw: {"node": draw.randint(1, nodes), **parameters(draw)}


def schedule(seed: int, seconds: float, nodes: int = 1) -> Iterator[Fault]:
    """Yield faults for so long."""
    draw = random.Random(seed)
    dealt = kinds(nodes)
    deck: list[str] = []
    at = draw.uniform(_SHORTEST_GAP_SECONDS, _LONGEST_GAP_SECONDS)
    while at < seconds:
        if not deck:
            deck = [kind for kind, (times, _) in dealt.items() for _ in range(times)]
            draw.shuffle(deck)
        kind = deck.pop()
        yield Fault(at=round(at, 1), kind=kind, parameters=dealt[kind][1](draw))
        at += draw.uniform(_SHORTEST_GAP_SECONDS, _LONGEST_GAP_SECONDS)
