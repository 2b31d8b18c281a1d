"""The schedule of a random soak: the faults with their times and parameters. A pure function of the seed.

Kinds are dealt from a shuffled deck that holds each kind, frequent ones several times. So a run of a few minutes meets
every kind, and seeds differ in the order. Faults overlap: a lasting fault goes on while others begin. On several nodes,
a fault of a broker or its wire hits one node, drawn at random; some kinds exist only there. This module has the faults
of programs, clocks, brokers and wires; each subject adds kinds of its own.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults import drift
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
# Requests of the members of a consumer group, and of producers that send its offsets.
_GROUP_APIS = {
    "add-offsets": Api.ADD_OFFSETS_TO_TXN,
    "send-offsets": Api.TXN_OFFSET_COMMIT,
    "fetch-offsets": 9,
    "join-group": 11,
    "heartbeat": 12,
    "sync-group": 14,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, `at` seconds after the start."""

    at: float
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the fault as a line of the log."""
        told = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        return f"{self.at:7.1f} s  {self.kind}{': ' if told else ''}{told}"


def api_of(name: str) -> int:
    """Return the API that a schedule names."""
    return {**_APIS, **_GROUP_APIS}[name]


Parameters = Callable[[random.Random], dict[str, Any]]
# By kind: how often it is in a deck, and the function that draws its parameters.
Kinds = Mapping[str, tuple[int, Parameters]]


def lasting(shortest: float, longest: float) -> Parameters:
    """Return a function that draws how many seconds a fault lasts."""
    return lambda draw: {"seconds": round(draw.uniform(shortest, longest), 1)}


def nothing(_: random.Random) -> dict[str, Any]:
    """Draw no parameters."""
    return {}


def pausing(draw: random.Random) -> dict[str, Any]:
    """Draw for how many seconds a process is stopped."""
    # Sometimes beyond every time-out: a silent task 3 s, a silent driver 10 s, a transaction 15 s.
    return {"seconds": round(draw.choice([draw.uniform(0.2, 3), draw.uniform(3, 12), draw.uniform(12, 22)]), 1)}


def one(draw: random.Random) -> dict[str, Any]:
    """Draw a number that chooses one of the processes that run when the fault is due."""
    return {"which": draw.randrange(60)}


def _wire(*apis: str) -> Parameters:
    def drawn(draw: random.Random) -> dict[str, Any]:
        verdict = draw.choice(["cut", "drop", "delay", "delay", "hold"])
        most = {"delay": 9.5, "hold": 20.0}.get(verdict, 0.0)
        return {
            "api": draw.choice(["end-txn", "end-txn", "produce", "produce", *apis]),
            "side": draw.choice(["request", "answer"]),
            "verdict": verdict,
            "seconds": round(draw.uniform(0.1, most), 1) if most else 0.0,
            "times": draw.choice([1, 1, 1, 2, 4]),
        }

    return drawn


def rows(draw: random.Random) -> dict[str, Any]:
    """Draw a number of rows."""
    return {"rows": draw.choice([1, 3, 20])}


def shards(draw: random.Random) -> dict[str, Any]:
    """Draw a number of shards, for programs whose layout is nothing else."""
    return {"shards": draw.choice([1, 2, 3, 4, 5])}


def _clock(draw: random.Random) -> dict[str, Any]:
    return {"offset": draw.choice(drift.OFFSETS), **lasting(2, 12)(draw)}


def _half(draw: random.Random) -> dict[str, Any]:
    return {
        "half": draw.choice(["coordinator", "coordinator", "leader"]),
        "verdict": draw.choice(["cut", "drop"]),
        **lasting(1, 15)(draw),
    }


_SPARK_KINDS: Kinds = {
    "kill-worker": (3, one),
    "kill-daemon": (1, nothing),
    "kill-driver": (1, nothing),
    "kill-jvm": (1, nothing),
    "pause-worker": (3, lambda draw: {**one(draw), **pausing(draw)}),
    "pause-driver": (1, pausing),
    "pause-jvm": (1, pausing),
    "clock": (3, _clock),
}
# Faults of a database with a table that the program reads.
TABLE_KINDS: Kinds = {
    "end-sessions": (3, rows),
    "postgres-fast": (1, lasting(0, 3)),
    "postgres-immediate": (1, lasting(0, 3)),
    "postgres-kill": (1, lasting(0, 3)),
    "table-locked": (2, lasting(0.5, 15)),
    "ids-restart": (2, nothing),
}
# Faults of one node, which is drawn.
_NODE_KINDS: Kinds = {
    "broker-kill": (1, lasting(0, 4)),
    "broker-stop": (1, lasting(0, 4)),
    "broker-pause": (1, lasting(0.5, 12)),
    "wire": (10, _wire(*_APIS)),
    "wire-cut-all": (1, nothing),
    "wire-pause": (1, lasting(0.5, 12)),
}
# With several nodes, a broker may be down for longer.
_CLUSTER_KINDS: Kinds = {
    "broker-kill": (2, lasting(0, 10)),
    "broker-stop": (2, lasting(0, 10)),
    "half-reachable": (3, _half),
}


def spark_kinds(layout: Parameters = shards) -> Kinds:
    """Return the faults of a program on Spark, and of its clock.

    `layout` draws the settings of a program that is started beside the others or restarted.
    """
    return {
        **_SPARK_KINDS,
        "newcomer": (2, lambda draw: {**layout(draw), "older": draw.choice(["lives", "stopped"]), **pausing(draw)}),
        "restart": (1, lambda draw: {**layout(draw), "how": draw.choice(["term", "kill"])}),
    }


def broker_kinds(nodes: int = 1, *, groups: bool = False) -> Kinds:
    """Return the faults of this many brokers and their wires; `groups`: also of requests of consumer groups."""
    found = dict(_NODE_KINDS if nodes == 1 else {**_NODE_KINDS, **_CLUSTER_KINDS})
    if groups:
        found["wire"] = (10, _wire(*_APIS, *_GROUP_APIS))
    on_nodes = {kind: (times, _on_a_node(nodes, drawn)) for kind, (times, drawn) in found.items()}
    return on_nodes if nodes == 1 else {**on_nodes, "leaders-return": (3, nothing)}


def _on_a_node(nodes: int, parameters: Parameters) -> Parameters:
    return lambda draw: {"node": draw.randint(1, nodes), **parameters(draw)}


def schedule(seed: int, seconds: float, dealt: Kinds) -> Iterator[Fault]:
    """Yield faults of these kinds, for this many seconds."""
    draw = random.Random(seed)
    deck: list[str] = []
    at = draw.uniform(_SHORTEST_GAP_SECONDS, _LONGEST_GAP_SECONDS)
    while at < seconds:
        if not deck:
            deck = [kind for kind, (times, _) in dealt.items() for _ in range(times)]
            draw.shuffle(deck)
        kind = deck.pop()
        yield Fault(at=round(at, 1), kind=kind, parameters=dealt[kind][1](draw))
        at += draw.uniform(_SHORTEST_GAP_SECONDS, _LONGEST_GAP_SECONDS)
