"""Relays that are elected by NELI, with default time-outs, as the subject of a random soak.

Every second one is `thresher run`, the others are a `Harvest`. Besides the faults of a relay, foreign members join and
leave their group, the group is denied, and their leader topic is deleted.
"""

import shutil
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.faults.fault_schedule import Kinds, broker_kinds, lasting, nothing, pausing
from tests.faults.guarded import Guard, acl_of
from tests.faults.mix.agenda import Agenda
from tests.faults.mix.candidates import Candidates
from tests.faults.mix.crew import Crew, Stage
from tests.faults.program import Program
from tests.processes import short_directory
from tests.relay import mixed_subject
from tests.relay.mixed_subject import LAYOUT, MixedRelay, relay_kinds
from tests.relay.subject import NAME
from thresher.devstack.broker import Kafka
from thresher.election.neli_clients import consumer_properties
from thresher.election.settings import ElectionSettings
from thresher.kafka.admin import Admin

LEADER_TOPIC = f"{NAME}.leader"
_ELECTION_KINDS: Kinds = {
    "kill-family": (2, nothing),
    "pause-family": (3, pausing),
    "storm": (2, lasting(3, 15)),
    "leader-topic-deleted": (2, nothing),
    # Shorter than the grace of members that are refused.
    "group-denied": (1, lasting(1, 20)),
}
_STAY_SECONDS, _GAP_SECONDS = 0.7, 0.3
_PATIENCE_SECONDS = 5.0


def elected_kinds(nodes: int = 1) -> Kinds:
    """Return every kind of fault that elected relays meet on this many nodes."""
    return {**relay_kinds(nodes), **broker_kinds(nodes, groups=True), **_ELECTION_KINDS}


class ElectionFaults:
    """The faults of the election."""

    def __init__(self, kafka: Kafka, *, agenda: Agenda) -> None:
        self._kafka, self._agenda = kafka, agenda
        self._admin = Admin(kafka.bootstrap)
        self._guard = Guard(kafka.bootstrap, patience_seconds=_PATIENCE_SECONDS)

    def storm(self, seconds: float) -> None:
        """Let foreign members join and leave the group, about once a second."""
        over = time.monotonic() + seconds
        for _ in range(2):
            threading.Thread(target=self._come_and_go, args=(over,), daemon=True).start()

    def leader_topic_deleted(self) -> None:
        self._admin.delete_topics([LEADER_TOPIC])

    def group_denied(self, seconds: float) -> None:
        denial = acl_of(
            ResourceType.GROUP, NAME, ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.DENY
        )
        self._agenda.later(seconds, "admit", lambda: self._guard.unbind(denial))
        self._guard.bind(denial)

    def _come_and_go(self, over: float) -> None:
        properties = consumer_properties({"bootstrap.servers": self._kafka.bootstrap}, NAME, ElectionSettings())
        while time.monotonic() < over:
            member = Consumer(properties)
            member.subscribe([LEADER_TOPIC])
            leaves = time.monotonic() + _STAY_SECONDS
            while time.monotonic() < leaves:
                member.consume(1, 0.05)
            member.close()
            time.sleep(_GAP_SECONDS)


class ElectedRelay(MixedRelay):
    """At least two relays, one of which leads. `shards` is the number of shards of each, until a fault changes it."""

    def __init__(self, *, shards: int = LAYOUT["shards"], **subject: Any) -> None:
        super().__init__(**subject)
        self._layout = {**LAYOUT, "shards": shards}
        self._temporary = short_directory()
        weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)

    def program(self, **settings: Any) -> Program:
        # When all processes of a relay are killed, none removes its files: they are removed with this object.
        program = super().program(**{"election": "neli", **settings})
        return program.changed(variables={"TMPDIR": str(self._temporary)})

    def crew(self, stage: Stage) -> Candidates:
        return Candidates(stage, self._layout, others={"as_command": True})

    def parts(self, agenda: Agenda, crew: Crew) -> Sequence[object]:
        return *super().parts(agenda, crew), ElectionFaults(self.stack.kafka, agenda=agenda)


PARTS: tuple[type, ...] = (Candidates, ElectionFaults, *mixed_subject.PARTS[1:])
