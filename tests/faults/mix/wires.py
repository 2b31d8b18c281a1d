"""The network faults of a random soak: each node of the cluster has a proxy of its own."""

from collections.abc import Mapping

from tests.faults.fault_schedule import api_of
from tests.faults.mix.agenda import Agenda
from thresher.testing.proxy import Action, Api, Cut, Delay, Drop, Hold, KafkaProxy

# How long a rule waits for a frame that it matches.
_WAITING_SECONDS = 20.0
_HALVES: Mapping[str, tuple[Api, ...]] = {
    "coordinator": (Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN),
    "leader": (Api.PRODUCE, Api.FETCH),
}


class Wires:
    """The proxies by node."""

    def __init__(self, proxies: Mapping[int, KafkaProxy], *, agenda: Agenda) -> None:
        self._proxies, self._agenda = proxies, agenda

    # Faults

    def wire(self, node: int, api: str, side: str, verdict: str, seconds: float, times: int) -> None:
        proxy = self._proxies[node]
        on = proxy.on_request if side == "request" else proxy.on_answer
        rule = on(api_of(api), _action(verdict, seconds), times=times)
        self._agenda.later(seconds if verdict == "hold" else _WAITING_SECONDS, "wire", rule.release)

    def wire_cut_all(self, node: int) -> None:
        self._proxies[node].cut_all()

    def wire_pause(self, node: int, seconds: float) -> None:
        self._proxies[node].pause()
        self._agenda.later(seconds, "wire", self._proxies[node].resume)

    def half_reachable(self, node: int, half: str, verdict: str, seconds: float) -> None:
        """Make a node's coordinator unreachable while it still accepts records; or the other way round."""
        rules = [self._proxies[node].on_request(api, _action(verdict, 0.0)) for api in _HALVES[half]]

        def release() -> None:
            for rule in rules:
                rule.release()

        self._agenda.later(seconds, "wire", release)


def _action(verdict: str, seconds: float) -> Action:
    actions: Mapping[str, Action] = {"cut": Cut(), "drop": Drop(), "delay": Delay(seconds=seconds), "hold": Hold()}
    return actions[verdict]
