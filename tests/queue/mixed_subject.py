"""Queues as the subject of a random soak: producers, consumers that come and go, and an administrator."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.fault_schedule import Kinds, broker_kinds, lasting, nothing, one, pausing
from tests.faults.guarded import Guard
from tests.faults.mix.agenda import DOWN, Agenda
from tests.faults.mix.crew import Crew, Stage
from tests.faults.mix.movement import Look
from tests.faults.program import Program
from tests.faults.proxied import proxied_broker
from tests.faults.subject import MixedSubject
from tests.processes import eventually
from tests.queue.load import QueueLoad
from tests.queue.mixed_consumers import Consumers, dying
from tests.queue.topics import QueueTopics
from tests.queue.verdict import Held, QueueVerdict, Told, identity_of, judge
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.stack import Stack
from thresher.queue.wire.marker import MarkerType, MessageId

QUEUES = ("orders", "mails", "grüße")
# A queue without consumers: the other queues' offsets pass its records.
OTHER = "other"
# Short time-outs, of the session and of a message, which is kept alive at half of its time-out.
KEYS: Mapping[str, Any] = {
    "redelivery-timeout": 4_000,
    "consumer-max-messages-per-commit": 50,
    "consumer-receive-buffer-capacity": 20,
    "send-timeout": 8_000,
    "consumer": {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000},
}
LOWERED_BYTES, LARGE_BYTES = 20_000, 30_000
_ANSWER_SECONDS, _STABLE_SECONDS = 2.0, 60.0

_KINDS: Kinds = {
    "kill-consumer": (4, one),
    "pause-consumer": (4, lambda draw: {**one(draw), **pausing(draw)}),
    "end-consumer": (2, one),
    "add-consumer": (4, dying),
    "raise-message-partitions": (1, nothing),
    "raise-marker-partitions": (1, nothing),
    "limit-lowered": (1, lasting(2, 12)),
}


def queue_kinds(nodes: int = 1) -> Kinds:
    """Return every kind of fault that queues meet on this many nodes."""
    return {**_KINDS, **broker_kinds(nodes, groups=True)}


class QueueAdministrator:
    """Adds partitions, and lowers the size limit so that large Starts are refused."""

    def __init__(self, topics: QueueTopics, load: QueueLoad, *, agenda: Agenda) -> None:
        self._topics, self._load, self._agenda = topics, load, agenda
        self._guard = Guard(topics.eyes["bootstrap.servers"], patience_seconds=5.0)

    # Faults

    def raise_message_partitions(self) -> None:
        self._raise(self._topics.config.message_topic)

    def raise_marker_partitions(self) -> None:
        self._raise(self._topics.config.marker_topic)

    def limit_lowered(self, seconds: float) -> None:
        """Lower the limit of the marker topic, so that large messages become dead letters."""
        topic = self._topics.config.marker_topic
        usual = int(self._topics.admin.topic_config(topic)["max.message.bytes"])
        self._agenda.later(seconds, "limit", lambda: self._guard.limit(topic, max(usual, 2 * LARGE_BYTES)))
        self._guard.limit(topic, LOWERED_BYTES)
        for queue in QUEUES:
            self._load.send(queue, LARGE_BYTES)

    def _raise(self, topic: str) -> None:
        found = self._topics.admin.topic(topic)
        assert found is not None
        self._topics.admin.widen_topic(topic, found.partitions + 1)


PARTS: tuple[type, ...] = (Consumers, QueueAdministrator)


class MixedQueues(MixedSubject):
    """A few queues, each with several consumers, and one without consumers."""

    def __init__(self, *, rate: float) -> None:
        self._rate = rate
        self._passed = 0

    def broker(self, *ways: int) -> KafkaOptions:
        # The controller removes a broker that was stopped for longer than this. Then no broker answers for the groups
        # that it coordinated, until it is restarted (seen with Kafka 4.2.1). So this is longer than any pause. It is
        # not much longer, because a killed broker cannot rejoin before this time.
        return proxied_broker(*ways, properties={"broker.session.timeout.ms": "20000"})

    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        self._directory = directory
        self._topics = QueueTopics(bootstrap, direct=stack.kafka.bootstrap, **KEYS)

    def program(self, **settings: Any) -> Program:
        number = settings.pop("number")
        return Program(
            module="tests.queue.mixed_program",
            settings={
                "keys": self._keys,
                "queues": QUEUES,
                "notes": str(self._directory / f"notes-{number}"),
                **settings,
            },
        )

    @property
    def _keys(self) -> dict[str, Any]:
        return self._topics.config.model_dump(mode="json", by_alias=True)

    def crew(self, stage: Stage) -> Consumers:
        return Consumers(stage)

    def parts(self, agenda: Agenda, crew: Crew) -> Sequence[object]:  # noqa: ARG002 - nothing of it is needed
        return (QueueAdministrator(self._topics, self._load, agenda=agenda),)

    # The load

    def begin_load(self) -> None:
        self._load = QueueLoad(self._keys, [*QUEUES, OTHER], rate=self._rate)

    def end_load(self) -> QueueLoad:
        self._load.stop()
        return self._load

    def look(self) -> Look | None:
        try:
            waiting, passed = self._stand()
        except DOWN:
            return None
        moved, self._passed = passed > self._passed, passed
        return Look(waiting, moved)

    def drained(self) -> bool:
        try:
            return self._stand()[0] == 0 and self._topics.is_stable()
        except DOWN:
            return False

    def _stand(self) -> tuple[int, int]:
        """Return how many records wait, over all groups, and how many were passed."""
        passed = sum(sum(self._topics.offsets(each.encode(), _ANSWER_SECONDS).values()) for each in QUEUES)
        # Read after the offsets, so that no offset is beyond an end.
        return sum(self._topics.ends().values()) * len(QUEUES) - passed, passed

    def circumstances(self) -> str:
        try:
            return "\n".join(f"{queue}: {self._topics.told(queue.encode())}" for queue in QUEUES)
        except DOWN as error:
            return f"the broker does not answer: {error}"

    def heal(self) -> None:
        """Do nothing: the brokers are the only servers."""

    # The end

    def verdict(self, *, everything: bool = False) -> QueueVerdict:  # noqa: ARG002 - no reader may get a repeat
        eventually(self._topics.is_stable, _STABLE_SECONDS, self.circumstances)
        self._markers = self._topics.markers()
        config = self._topics.config
        self._messages = {
            MessageId(partition, offset): identity_of(content)
            for partition, offset, content in self._topics.contents(config.message_topic)
        }
        self._dead = [identity_of(content) for _, _, content in self._topics.contents(config.dead_topic)]
        self._noted = self._read_notes()
        self._verdict = QueueVerdict.of(
            fault
            for queue in QUEUES
            for fault in judge(self._held(queue), self._told(queue), redelivery_ms=config.redelivery_timeout)
        )
        return self._verdict

    def wrong(self) -> list[str]:
        strays = [each for each in self._markers if each.marker.message_id not in self._messages]
        others = {place for place, identity in self._messages.items() if _queue(identity) == OTHER}
        strays += [each for each in self._markers if each.marker.message_id in others]
        return [f"nobody's marker: {each}" for each in strays[:5]]

    def figures(self) -> dict[str, int]:
        """Return the counts of messages and of each fault."""
        ends = sum(each.marker.type is MarkerType.END for each in self._markers)
        starts = sum(each.marker.type is MarkerType.START for each in self._markers)
        sent, confirmed, refused = self._load.sent, self._load.confirmed, self._load.refused
        return {
            "sent": len(sent),
            "unknown": len(sent) - len(confirmed) - len(refused),
            "refused": len(refused),
            "sent_again": len(self._messages) - len(set(self._messages.values())),
            "started": starts,
            "received": len(self._noted["received"]),
            "ended": ends,
            "others_markers": len(self._markers) - starts - ends,
            "dead": len(self._dead),
            **self._verdict.counts,
        }

    def _held(self, queue: str) -> Held:
        messages = {place: identity for place, identity in self._messages.items() if _queue(identity) == queue}
        return Held(
            messages=messages,
            markers=[
                each
                for each in self._markers
                if each.marker.message_id in messages or each.marker.key == queue.encode()
            ],
            offsets=self._topics.offsets(queue.encode()),
            dead=[identity for identity in self._dead if _queue(identity) == queue],
        )

    def _told(self, queue: str) -> Told:
        sent, refused = self._load.sent, self._load.refused
        confirmed = {name: place for name, place in self._load.confirmed.items() if _queue(name) == queue}
        ours = {place for place, identity in self._messages.items() if _queue(identity) == queue}
        received = [(place, name) for place, name in self._noted["received"] if _queue(name) == queue]
        return Told(
            confirmed=confirmed,
            unknown=frozenset(sent - self._load.confirmed.keys() - refused.keys()),
            refused=frozenset(refused),
            received=received,
            acked=frozenset(place for place, _ in self._noted["acked"] if place in ours),
            given_back=frozenset(place for place, _ in self._noted["given-back"] if place in ours),
        )

    def _read_notes(self) -> dict[str, list[tuple[MessageId, str]]]:
        """Return the programs' notes, by the first word of a line."""
        found: dict[str, list[tuple[MessageId, str]]] = {"received": [], "acked": [], "given-back": [], "unknown": []}
        for notes in self._directory.glob("notes-*"):
            for line in notes.read_text().splitlines():
                kind, *rest = line.split(" ")
                if kind in found:
                    partition, _, offset = rest[0].partition("-")
                    found[kind].append((MessageId(int(partition), int(offset)), "".join(rest[1:])))
        return found


def _queue(identity: str) -> str:
    return identity.rpartition("/")[0]
