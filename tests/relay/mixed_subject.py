"""The relay as the subject of a random soak: a broker with an authorizer, bad rows, and an administrator."""

import functools
import multiprocessing
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.faults import drift
from tests.faults.fault_schedule import TABLE_KINDS, Kinds, broker_kinds, lasting, nothing, rows, spark_kinds
from tests.faults.guarded import LOGIN, guarded
from tests.faults.mix.agenda import Agenda
from tests.faults.mix.crew import Crew, Stage
from tests.faults.mix.database import Database
from tests.faults.mix.movement import Leaving, Look
from tests.faults.mix.programs import Programs
from tests.faults.program import Program
from tests.faults.subject import MixedSubject
from tests.relay.mixed_administrator import Administrator
from tests.relay.mixed_rows import Rows
from tests.relay.subject import NAME, TABLE, RelaySubject
from thresher.devstack.broker import KafkaOptions
from thresher.relay.settings import Delivery
from thresher.testing.checker import Verdict, check
from thresher.testing.history import Outcome
from thresher.testing.pump import Tally
from thresher.testing.reading import read_topics

# The first values of the settings that another program or a restart may change.
LAYOUT: Mapping[str, Any] = {"shards": 4, "transforms": True}
TRANSFORM = "tests.relay.transforms:choosy"
PARTS: tuple[type, ...] = (Programs, Rows, Database, Administrator)
# Batches above the size of a small read: such a backlog is read by windows.
BACKLOG_KEYS, BACKLOG_BATCH_ROWS = 2_000, 500
_BACKLOG_SECONDS = 600.0
_KINDS: Kinds = {
    **TABLE_KINDS,
    "raise-partitions": (1, nothing),
    "topic-denied": (1, lasting(2, 12)),
    "other-topic-denied": (1, lasting(2, 12)),
    "producer-denied": (1, lasting(1, 5)),
    "limit-lowered": (1, lasting(2, 12)),
    "topic-missing": (2, lasting(1, 20)),
    "bad-rows": (3, rows),
    "large-rows": (2, rows),
    "choosy-rows": (3, rows),
    "long-transaction": (2, lasting(5, 60)),
}


# Faults with large (TOASTed) rows: a table that has held one is read by buckets until it is vacuumed.
_LARGE_KINDS = ("large-rows", "limit-lowered")


def relay_kinds(nodes: int = 1, *, backlog: bool = False) -> Kinds:
    """Return every kind of fault that a relay meets on this many nodes.

    With a backlog, rows come in bursts, and faults that would end the reading by windows for good are left out.
    """
    kinds = {**spark_kinds(_layout), **_KINDS, **broker_kinds(nodes)}
    if not backlog:
        return kinds
    small = {kind: dealt for kind, dealt in kinds.items() if kind not in _LARGE_KINDS}
    return {**small, "burst": (3, lambda draw: {"rows": draw.choice([5_000, 20_000]), **lasting(0.1, 2)(draw)})}


def _layout(draw: random.Random) -> dict[str, Any]:
    return {"shards": draw.choice([1, 2, 3, 4, 5]), "transforms": draw.choice([True, False])}


class MixedRelay(RelaySubject, MixedSubject):
    """A relay that logs in to its broker, with additional rows beside the load.

    `backlog` rows are in the outbox before the first relay starts. Then there are many keys, and rows come in bursts.
    """

    # The usual limits of silence: a relay that is stopped counts as dead.
    policy: Mapping[str, float] = {}
    # The prefix of its transactional ids, and the writer of the additional rows.
    producers = f"{NAME}-"
    rows_type: type[Rows] = Rows

    def __init__(self, *, backlog: int = 0, **subject: Any) -> None:
        super().__init__(**subject)
        self._backlog = backlog
        if backlog:
            self.keys, self.batch_rows = BACKLOG_KEYS, BACKLOG_BATCH_ROWS

    def broker(self, *ways: int) -> KafkaOptions:
        # Moved leaders stay on their new nodes until a fault moves them back.
        return guarded(*ways, properties={"auto.leader.rebalance.enable": "false"})

    def program(self, *, transforms: bool = True, **settings: Any) -> Program:
        return super().program(transforms=[TRANSFORM] if transforms else [], kafka=LOGIN, hook=drift.HOOK, **settings)

    def begin_load(self) -> None:
        if self._backlog:
            self._begin(records=self._backlog, rate=None, transaction_rows=50).finish(_BACKLOG_SECONDS)
        super().begin_load()

    def end_load(self) -> Tally:
        super().end_load()
        return functools.reduce(Tally.merge, (load.tally for load in self._loads))

    def crew(self, stage: Stage) -> Programs:
        return Programs(stage, LAYOUT)

    def parts(self, agenda: Agenda, crew: Crew) -> Sequence[object]:
        server, kafka = self.stack.postgres, self.stack.kafka
        self._database = Database(server, self.dsn, table=TABLE.table, writers=_writers, agenda=agenda)
        self._leaving = Leaving(self._database.counted)
        own_keys = self.delivery is Delivery.AT_LEAST_ONCE
        self._rows = self.rows_type(
            self._database.connect, self.history, own_keys=own_keys, large=not self._backlog, agenda=agenda
        )
        self._administrator = Administrator(kafka, self._rows, crew, producers=self.producers, agenda=agenda)
        self._administrator.prepare()
        return self._rows, self._database, self._administrator

    def look(self) -> Look | None:
        return self._leaving.look()

    def circumstances(self) -> str:
        return self._database.circumstances()

    def heal(self) -> None:
        self._database.start()

    @property
    def topics(self) -> Sequence[str]:
        """Every topic of the rows."""
        return self._administrator.topics

    def verdict(self, *, everything: bool) -> Verdict:
        held = self.held()
        reads = read_topics(self.stack.kafka.bootstrap, self.topics, uncommitted=everything)
        seen = {read.identity for read in reads}
        # A reader of all records may have seen a row in an aborted transaction, before the row became dead.
        dead = held.dead - (self._rows.doubtful & seen) if everything else held.dead
        return check(
            self.transactions(),
            reads,
            dead=dead,
            pending=held.pending,
            filtered=self._rows.filtered - seen,
            repeats_allowed=everything,
            # `wrong` judges the dead rows one by one.
            allowed_dead=len(dead),
        )

    def wrong(self) -> list[str]:
        committed = {
            name for each in self.transactions() if each.outcome is Outcome.COMMITTED for name in each.identities()
        }
        return self._rows.wrong(self.held().dead, committed)


def _writers() -> list[int]:
    """The writer processes of the load, whose fleet is a thread of this process."""
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.pid is not None and child.name.startswith("pump-writer-")]
