"""A minimal second workload: each shard writes 0, 1, 2, … to its partition of a topic, each number once.

Take-over writes the term to a separate topic, where the watch finds a newer term. A shard's transactional id fences
the earlier attempts of any term; then the shard goes on after the last committed number.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from thresher.core.errors import Superseded
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.service.health import Role
from thresher.service.metrics import family
from thresher.service.report import Observed, ServiceSnapshot, StatusPart
from thresher.service.wording import Wording
from thresher.service.workload import PeriodicCheck
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.worker.shard import Shard

WORDING = Wording(label="counter", verb="count", doing="counting", done="counted")
COUNTED = family(WORDING.label, MetricKind.COUNTER, "counted_numbers", "Numbers that were committed.", "shard")
BATCH = 5
PAUSE_SECONDS = 0.02
ANSWER_SECONDS = 30.0
Config = Mapping[str, Any]


@dataclass
class Progress:
    """The next number, which the publisher passes to the reader."""

    next: int = 0


def read(shard: Shard, config: Config) -> Iterator[pa.RecordBatch]:
    """Yield the numbers after the last one, which the publisher has found."""
    while not shard.wait(PAUSE_SECONDS):
        first = shard.share(Progress).next
        yield pa.record_batch({"number": list(range(first, first + BATCH))})


def publish(shard: Shard, config: Config, batches: Iterator[pa.RecordBatch]) -> None:
    """Fence older attempts, find the last number, and write each batch in a transaction."""
    producer = Producer(
        {**config["kafka"], "transactional.id": f"{config['topic']}-{shard.index}", "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions(ANSWER_SECONDS)
    shard.share(Progress).next = len(committed(config["kafka"], config["topic"], shard.index))
    shard.gauge(WORDING.doing, 1)
    shard.event(WORDING.doing)
    for batch in batches:
        producer.begin_transaction()
        for number in batch["number"].to_pylist():
            producer.produce(config["topic"], value=str(number), partition=shard.index)
        producer.commit_transaction(ANSWER_SECONDS)
        shard.share(Progress).next += batch.num_rows
        shard.count(WORDING.done, batch.num_rows)


def committed(kafka: Mapping[str, Any], topic: str, partition: int) -> list[str]:
    """Return the committed values of a partition, up to its current end."""
    properties = {
        **kafka, "group.id": "unused", "enable.auto.commit": False, "isolation.level": "read_committed",
        "enable.partition.eof": True, "fetch.wait.max.ms": 20,
    }  # fmt: skip
    found: list[str] = []
    with closing(Consumer(properties)) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(ANSWER_SECONDS)
            if message is None:
                raise BrokerLost(f"{topic} was not read in time")
            error = message.error()
            if error is None:
                found.append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise BrokerLost(f"{topic} cannot be read: {error.str()}")


class NumbersTerm:
    """One take-over."""

    def __init__(self, workload: "NumbersWorkload", term: str) -> None:
        self._workload, self.id = workload, term
        self.alarms: dict[str, str] = {}
        self.events: list[tuple[int, str, Mapping[str, Any]]] = []

    @property
    def pipeline(self) -> Pipeline:
        workload = self._workload
        config = {"topic": workload.name, "kafka": workload.kafka}
        return Pipeline(
            name=workload.name,
            shards=workload.shards,
            steps=(
                Step(function="tests.service.numbers:read"),
                Step(function="tests.service.numbers:publish", config=config),
            ),
            policy=Policy(beat_seconds=0.2, back_off_most_seconds=2.0, silence_seconds=15.0, deaf_seconds=30.0),
        )

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        yield [PeriodicCheck(at="broker", run=self._look)]

    def _look(self) -> None:
        if committed(self._workload.kafka, self._workload.terms, 0)[-1] != self.id:
            raise Superseded("a newer counter of the same name has taken over")

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        self.events.append((shard, event, fields))

    def work_waits(self) -> bool:
        # A counter always has a next number to write.
        return True

    def explain(self, shard: int, step: str) -> str | None:
        return f"step {step} of shard {shard}"

    def taken_back(self) -> bool:
        return False


class NumbersReport:
    """The workload's own part of the pages."""

    families: tuple[Family, ...] = (COUNTED,)
    error_kinds = ("broker_lost",)

    def __init__(self, topic: str, observed: Observed) -> None:
        self._topic, self._observed = topic, observed

    def ask(self) -> None: ...

    def status(self, snapshot: ServiceSnapshot, _answer: None) -> StatusPart:
        return StatusPart(
            page={"topic": self._topic, "writes": self._observed.role is Role.LEADING},
            shards={each.shard: {"partition": each.shard} for each in snapshot.shards},
        )

    def readings(self, snapshot: ServiceSnapshot, _answer: None) -> Iterator[Reading]:
        for shard, counts in snapshot.counts.items():
            yield Reading(family=COUNTED, labels=(snapshot.name, str(shard)), value=counts.get(WORDING.done, 0))

    def close(self) -> None: ...


class NumbersWorkload:
    """A counter, named after its topic."""

    wording = WORDING
    preload = ("tests.service.numbers",)
    shards = 2

    def __init__(self, name: str, kafka: Mapping[str, Any]) -> None:
        self.name, self.kafka = name, dict(kafka)
        self.terms = f"{name}.terms"

    @property
    def probes(self) -> dict[str, Callable[[], None]]:
        return {"broker": self._reach_broker}

    def _reach_broker(self) -> None:
        try:
            Admin.of({"log_level": 0, **self.kafka}).require_answer()
        except KafkaException as error:
            raise BrokerLost(f"the broker failed: {error}") from error

    def check(self, *, local: bool) -> None: ...

    def take_over(self, term: str, wanted: Callable[[], bool]) -> NumbersTerm | None:
        admin = AdminClient(self.kafka)
        for topic, partitions in ((self.name, self.shards), (self.terms, 1)):
            try:
                admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BrokerLost(f"{topic} cannot be made: {error}") from error
        if not wanted():
            return None
        producer = Producer({**self.kafka, "acks": "all"})
        producer.produce(self.terms, value=term, partition=0)
        if producer.flush(ANSWER_SECONDS):
            raise BrokerLost("the term was not written in time")
        return NumbersTerm(self, term)

    def report(self, observed: Observed) -> NumbersReport:
        return NumbersReport(self.name, observed)
