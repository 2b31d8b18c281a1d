"""Requests and answers that are late or lost between relay and broker: the relay reads the outcome, and never guesses.

Time limits are five times the longest time seen, plus 5 s. A dropped frame costs the client's time-outs, 8 to 10 s,
so the shards wait for them in parallel.
"""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults.wire import QUICK, Storm, Wire
from tests.processes import eventually
from tests.relay.load import Load
from tests.relay.relaying import Place, Relaying
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session
from thresher.testing.proxy import Api, Cut, Delay, Drop, Frame, Hold, KafkaProxy, Rule, Verdict

FENCED = {47, 90}
QUICK_GAP = 8
# Rows per second: a few for each shard.
RATE = 60.0
# Seen: 47 s for a whole test, on a busy machine.
MET_SECONDS = 150.0
_numbers = itertools.count(1)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def place(proxied: tuple[Stack, int], proxy: KafkaProxy, spark: Session) -> Place:
    name = f"wire{next(_numbers)}"
    return Place(proxied[0], proxied[0].postgres.create_database(name), f"{name}-")


@pytest.fixture
def wire(place: Place, proxy: KafkaProxy) -> Wire:
    return Wire(proxy, place.settings().name)


def relaying(place: Place, proxy: KafkaProxy, shards: int, **changes: Any) -> Relaying:
    return place.relaying(shards=shards, kafka={"bootstrap.servers": proxy.address}, **changes)


def stash(place: Place, word: str, rows: int) -> None:
    place.stash(*(Message(topic=place.topic, key=f"k{n % 7}", value=f"{word}{n}") for n in range(rows)))


def relayed(relay: Relaying, *shards: int) -> bool:
    """Whether each of the shards has sent rows."""
    return bool(relay.shards) and all(relay.shards[shard].counts.get("relayed") for shard in shards)


def error_of(end_txn: Frame) -> int:
    """Return the error code of an EndTxn response, in versions before tagged fields."""
    assert end_txn.version < 3
    return int.from_bytes(end_txn.raw[12:14], signed=True)


def test_a_late_commit_does_not_touch_the_next_transaction(place: Place, proxy: KafkaProxy, wire: Wire) -> None:
    answers: list[int] = []
    with relaying(place, proxy, shards=1) as relay:
        stash(place, "a", 100)
        relay.until(lambda: place.pending() == 0)
        late = wire.request(Api.END_TXN, 0, Hold(hang_up=True), times=1)
        stash(place, "b", 100)
        late.wait(timeout_seconds=60)
        # The client retries by itself, with success. The relay does not trust that answer.
        relay.until(lambda: place.pending() == 0)
        assert relay.total("errors.commit_unknown")
        # The next transaction is held too, so that none of its commits is answered before the late one.
        written = wire.answer(Api.PRODUCE, 0, Hold())
        stash(place, "c", 100)
        written.wait(timeout_seconds=60)
        wire.answer(Api.END_TXN, 0, lambda frame: answers.append(error_of(frame)))
        late.release()
        eventually(lambda: answers, 60)
        assert answers[0] in FENCED
        place.read(200)
        written.release()
        relay.until(lambda: place.pending() == 0)
    wanted = {f"{word}{n}".encode() for word in "abc" for n in range(100)}
    assert {message.value() for message in place.read(300)} == wanted


@dataclass
class Faults:
    """The rules that make a shard's faults. A rule that matched shows that its fault happened."""

    rules: dict[str, Rule] = field(default_factory=dict)

    def left(self) -> list[str]:
        return [what for what, rule in self.rules.items() if not rule.matched]


def test_the_outcome_behind_a_missing_answer_is_not_guessed(
    place: Place, proxy: KafkaProxy, wire: Wire, tmp_path: Path
) -> None:
    faults = Faults()

    def lose(shard: int, api: Api) -> None:
        """Drop an answer and keep the connection; then lose another answer with its connection."""
        for action in (Drop(), Cut()):
            faults.rules[f"{shard}: {api.name} {action}"] = wire.answer(api, shard, action, times=1)

    # A shard that cannot begin: its init is slow, then unanswered, then cut off.
    faults.rules["3: slow init"] = wire.request(Api.INIT_PRODUCER_ID, 3, Delay(seconds=3.0), times=1)
    lose(3, Api.INIT_PRODUCER_ID)
    with relaying(place, proxy, shards=6) as relay, Load(place, tmp_path, rate=RATE) as load:
        relay.until(lambda: relayed(relay, 0, 1, 2, 4, 5), MET_SECONDS)
        # A commit that the client gives up, and that arrives during the next transaction.
        held = wire.request(Api.END_TXN, 0, Hold(), times=1)
        faults.rules["0: late commit"] = held
        inits: list[Frame] = []
        wire.request(Api.INIT_PRODUCER_ID, 0, inits.append)

        def under_way(_: Frame) -> Verdict | None:
            if inits:
                held.release()
            return None

        wire.request(Api.PRODUCE, 0, under_way)
        lose(1, Api.END_TXN)
        lose(2, Api.PRODUCE)
        lose(4, Api.ADD_PARTITIONS_TO_TXN)
        # The shard without faults goes on while the others wait.
        before = relay.shards[5].counts["relayed"]
        relay.until(lambda: relay.shards[5].counts["relayed"] > before)
        relay.until(lambda: relayed(relay, 3), MET_SECONDS)
        faults.rules["3: commit never sent"] = wire.request(Api.END_TXN, 3, Drop(), times=1)
        relay.until(lambda: not faults.left(), MET_SECONDS)
        load.end()
        doubts = [shard.counts.get("errors.commit_unknown", 0) for shard in relay.shards]
    load.require_clean(100)
    # Every commit without a clear answer counts as unknown. Other lost answers, the client may repair by itself.
    assert all(doubts[shard] for shard in (0, 1, 3)), doubts


def test_random_network_faults_lose_repeat_and_reorder_nothing(
    place: Place, proxy: KafkaProxy, wire: Wire, tmp_path: Path
) -> None:
    with relaying(place, proxy, shards=4) as relay, Load(place, tmp_path, rate=RATE) as load:
        relay.until(lambda: relayed(relay, 0, 1, 2, 3), MET_SECONDS)
        storm = Storm(wire, seed=6, gap=QUICK_GAP, faults=QUICK)
        relay.until(
            lambda: len(storm.met) >= 20 and len({(fault.api, fault.what) for fault in storm.met}) >= 8, MET_SECONDS
        )
        storm.end()
        load.end()
    load.require_clean(100)


def test_at_least_once_lost_answers_cause_only_adjacent_duplicates(
    place: Place, proxy: KafkaProxy, wire: Wire, tmp_path: Path
) -> None:
    with (
        relaying(place, proxy, shards=3, delivery=Delivery.AT_LEAST_ONCE) as relay,
        Load(place, tmp_path, rate=RATE, own_keys=True) as load,
    ):
        relay.until(lambda: relayed(relay, 0, 1, 2), MET_SECONDS)
        rules = [
            wire.answer(Api.PRODUCE, 0, Cut(), times=2),
            wire.answer(Api.PRODUCE, 1, Drop(), times=1),
            wire.answer(Api.END_TXN, 2, Cut(), times=2),
        ]
        relay.until(lambda: all(rule.matched for rule in rules), MET_SECONDS)
        load.end()
    load.require_clean(30, everything=True)
