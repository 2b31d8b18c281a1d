"""Relays that share topics by locks, as the subject of a random soak: several processes work at once.

Every second one is a relay on Spark, the others work in threads. Faults hit each of them in turn.
"""

import itertools
import math
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.fault_schedule import Kinds
from tests.faults.mix.crew import Stage, Started
from tests.faults.mix.programs import Programs
from tests.faults.program import Program
from tests.relay import mixed_subject
from tests.relay.load import Load
from tests.relay.mixed_subject import MixedRelay, relay_kinds
from tests.relay.subject import TABLE, TOPIC
from thresher.db.postgres.topic_locks import create_locks
from thresher.db.shape import Shape
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

TOPICS = 8
_LEAST, _MOST = 4, 6
# Short, so that the locks of a killed process expire before the soak counts as stuck; one topic is split.
_LOCKING = {"lock_seconds": 5.0, "rest_seconds": 0.2, "split_topics": {f"{TOPIC}-0": 3}}
_ON_SPARK: Mapping[str, Any] = {"shards": 2}
_IN_THREADS: Mapping[str, Any] = {"shards": 2, "threads": 2}


def locking_kinds(nodes: int = 1) -> Kinds:
    """Return every kind of fault that these relays meet: without those of transforms, which they do not have."""
    return {kind: dealt for kind, dealt in relay_kinds(nodes).items() if kind != "choosy-rows"}


class Members(Programs):
    """Programs that all work at the same time. None supersedes another."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, {})
        self._numbers = itertools.count()
        self._turns = itertools.count()

    def begin(self) -> None:
        """Start programs until the least number runs."""
        while len(self.alive()) < _LEAST:
            self._begin_one()

    def keep_up(self, *, newest_ended: bool) -> None:  # noqa: ARG002
        self.begin()

    def stop(self) -> None:
        super(Programs, self).stop()

    @property
    def current(self) -> Started:
        """The next program in turn, another one at each call."""
        alive = self.alive() or self._started
        return alive[next(self._turns) % len(alive)]

    def kill_driver(self) -> bool:
        hit = self.current
        hit.excuse(-signal.SIGKILL)
        hit.process.kill()
        return True

    def kill_jvm(self) -> bool:
        # Only some programs have a JVM: any of them may be the one that is hit.
        for each in self.alive():
            each.excuse(1)
        return super().kill_jvm()

    def newcomer(self, older: str, seconds: float, **_: Any) -> bool:
        if len(self.alive()) >= _MOST:
            return False
        if older == "stopped":
            self.pause_driver(seconds)
        self._begin_one()
        return True

    def restart(self, how: str, **_: Any) -> None:
        hit = self.current
        hit.excuse(0 if how == "term" else -signal.SIGKILL)
        # A program that was just started has no signal handler yet.
        hit.excused[-signal.SIGTERM] = math.inf
        hit.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)

    def _begin_one(self) -> None:
        begun = self._begun(_ON_SPARK if next(self._numbers) % 2 == 0 else _IN_THREADS)
        begun.excused[-signal.SIGTERM] = math.inf


class LockingRelay(MixedRelay):
    """Relays that share topics by locks, under a load in several topics."""

    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        super().prepare(stack, bootstrap, directory)
        with psycopg.connect(self.dsn) as connection:
            create_locks(connection, TABLE, Shape.THRESHER)
        for name in self._names:
            Admin(stack.kafka.bootstrap).create_topic(name, partitions=2)

    def program(self, **settings: Any) -> Program:
        return super().program(transforms=False, **{"topic_lock": _LOCKING, "batch_rows": 50, **settings})

    def crew(self, stage: Stage) -> Members:
        return Members(stage)

    @property
    def topics(self) -> Sequence[str]:
        return [*super().topics, *self._names]

    @property
    def _names(self) -> list[str]:
        return [f"{TOPIC}-{number}" for number in range(TOPICS)]

    def _begin(self, **plan: Any) -> Load:
        return super()._begin(topics=TOPICS, **plan)


PARTS: tuple[type, ...] = (Members, *mixed_subject.PARTS[1:])
