"""The broker faults of a random soak. Only one of three brokers is down at a time: with two down, no write succeeds."""

from collections.abc import Callable

from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from tests.faults.mix.agenda import Agenda
from tests.faults.mix.signals import pause
from tests.processes import eventually
from thresher.devstack import ports
from thresher.devstack.broker import Kafka
from thresher.kafka.admin import cluster_at

_ELECTED_MILLISECONDS = 5000
_HEALED_SECONDS = 120.0


class Brokers:
    """The nodes of the cluster."""

    def __init__(self, kafka: Kafka, *, agenda: Agenda) -> None:
        self._kafka, self._agenda = kafka, agenda
        # The time-out is the client's own: `elect_leaders` fails on a time-out argument.
        self._client = AdminClient(
            {"bootstrap.servers": kafka.bootstrap, "log_level": 0, "socket.timeout.ms": _ELECTED_MILLISECONDS}
        )
        # Nodes that were ended and have not been seen in the cluster since.
        self._away: set[int] = set()

    def look_after(self) -> None:
        """Start a node again that did not come up."""
        for node, server in self._kafka.nodes.items():
            if not server.running and _start_of(node) not in self._agenda:
                self._agenda.tell(f"broker {node} did not start: {server.tail(3)}")
                self._kafka.start_node(node, wait=False)

    def heal(self) -> None:
        """Wait until every node sees the whole cluster."""

        def whole() -> bool:
            self.look_after()
            return all(self._in_cluster(node) == len(self._kafka.nodes) for node in self._kafka.nodes)

        eventually(whole, _HEALED_SECONDS, lambda: "\n".join(each.tail(5) for each in self._kafka.nodes.values()))

    # Faults

    def broker_kill(self, node: int, seconds: float) -> bool:
        return self._end(node, self._kafka.nodes[node].kill, seconds)

    def broker_stop(self, node: int, seconds: float) -> bool:
        return self._end(node, self._kafka.nodes[node].stop, seconds)

    def broker_pause(self, node: int, seconds: float) -> bool:
        server = self._kafka.nodes[node]
        free = server.running and not self._others_away(node)
        return free and pause(self._agenda, [server.pid], seconds, _pause_of(node))

    def leaders_return(self) -> bool:
        """Move leaders back to their preferred nodes; return whether any had moved."""
        asked = self._client.elect_leaders(ElectionType.PREFERRED)
        return any(problem is None for problem in asked.result().values())

    def _end(self, node: int, end: Callable[[], object], seconds: float) -> bool:
        if not self._kafka.nodes[node].running or self._others_away(node):
            return False
        end()
        self._away.add(node)
        self._agenda.later(seconds, _start_of(node), lambda: self._start(node))
        return True

    def _start(self, node: int) -> None:
        if not self._kafka.nodes[node].running:
            self._kafka.start_node(node, wait=False)

    def _others_away(self, node: int) -> bool:
        self._away -= {each for each in self._away if self._in_cluster(each) == len(self._kafka.nodes)}
        return any(
            each in self._away or not server.running or _pause_of(each) in self._agenda
            for each, server in self._kafka.nodes.items()
            if each != node
        )

    def _in_cluster(self, node: int) -> int:
        """Return how many nodes this one sees, itself included; 0 if it is not in the cluster."""
        seen = cluster_at(f"{ports.HOST}:{self._kafka.port(node=node)}")
        return len(seen.brokers) if seen is not None and node in seen.brokers else 0


def _start_of(node: int) -> str:
    return f"start of broker {node}"


def _pause_of(node: int) -> str:
    return f"pause of broker {node}"
