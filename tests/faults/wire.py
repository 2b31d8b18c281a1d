"""Proxy rules for the requests of one shard of a relay, found by the transactional id in the request."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thresher.testing.proxy import Action, Api, Cut, Delay, Drop, Frame, KafkaProxy, Rule, Verdict

# A request holds its transactional id in its first bytes, before any record.
_BEGINNING = 400
TRANSACTIONAL = (Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN)
# "late": the client's connection is closed, it retries, and the request arrives during the next transaction.
QUICK: Mapping[str, Verdict] = {
    "cut": Cut(),
    "slow": Delay(seconds=0.5),
    "late": Delay(seconds=4.0, hang_up=True),
}
# Also faults that cost the client its time-outs.
ALL: Mapping[str, Verdict] = {**QUICK, "lost": Drop(), "too slow": Delay(seconds=12.0)}


class Wire:
    """Makes rules for one shard of one relay. An answer belongs to the shard of its request."""

    def __init__(self, proxy: KafkaProxy, name: str) -> None:
        self.proxy = proxy
        self._name = name.encode()
        self._asked: dict[tuple[int, int], bytes] = {}
        proxy.on_request(None, self._note)

    def request(self, api: Api, shard: int, action: Action, *, times: int | None = None) -> Rule:
        """Make a rule for a shard's requests."""
        return self.proxy.on_request(api, self._only(shard, action), times=times)

    def answer(self, api: Api, shard: int, action: Action, *, times: int | None = None) -> Rule:
        """Make a rule for the answers to a shard's requests."""
        return self.proxy.on_answer(api, self._only(shard, action), times=times)

    def owns(self, frame: Frame) -> bool:
        """Whether a frame belongs to a transactional request of the relay."""
        return (frame.connection, frame.correlation) in self._asked

    def _only(self, shard: int, action: Action) -> Callable[[Frame], Verdict | None]:
        mine = b"%s-%d" % (self._name, shard)

        def decide(frame: Frame) -> Verdict | None:
            beginning = self._asked.get((frame.connection, frame.correlation), b"")
            if mine not in beginning:
                return None
            return action(frame) if callable(action) else action

        return decide

    def _note(self, frame: Frame) -> None:
        if self._name in (beginning := frame.raw[:_BEGINNING]):
            self._asked[frame.connection, frame.correlation] = beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A fault that hit a frame."""

    api: Api
    is_answer: bool
    number: int
    what: str


class Storm:
    """Random faults among a relay's transactional frames. A seed repeats the fault of the n-th frame of a kind."""

    def __init__(self, wire: Wire, seed: int, *, gap: int, faults: Mapping[str, Verdict]) -> None:
        """`gap` is the average number of frames of a kind between two faults."""
        self.met: list[Met] = []
        self._over = False
        self._wire = wire
        for api in TRANSACTIONAL:
            for is_answer in (False, True):
                action = self._kind(random.Random(f"{seed}/{api}/{is_answer}"), api, gap, faults)
                (wire.proxy.on_answer if is_answer else wire.proxy.on_request)(api, action)

    def end(self) -> None:
        """Let everything pass again."""
        self._over = True

    def _kind(self, draw: random.Random, api: Api, gap: int, faults: Mapping[str, Verdict]) -> Action:
        # Inits are rare, and each fault causes more of them.
        gap = gap if api is not Api.INIT_PRODUCER_ID else 3
        seen, due = 0, 1 + int(draw.expovariate(1 / gap))

        def decide(frame: Frame) -> Verdict | None:
            nonlocal seen, due
            if self._over or not self._wire.owns(frame):
                return None
            seen += 1
            if seen < due:
                return None
            due = seen + 1 + int(draw.expovariate(1 / gap))
            what = draw.choice([name for name in faults if not (frame.is_answer and name == "late")])
            self.met.append(Met(api=api, is_answer=frame.is_answer, number=seen, what=what))
            return faults[what]

        return decide
