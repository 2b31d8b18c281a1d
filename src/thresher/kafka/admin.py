"""The administration of a cluster: its brokers, its topics and their sizes. No records are read or written here."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from thresher.core.secrets import revealed, revealed_properties

# The errors that a call raises include the client's connection errors. The client's own log lines are for debugging.
_logger = logging.getLogger(f"{__name__}.client")
_QUIET = {"log_level": 2}
_REQUEST_SECONDS = 15.0
# For a request whose answer is optional.
_SHORT_SECONDS = 3.0
_REFRESH_MS = 2_000
# How long a cluster may refuse credentials that it will accept, and the pause between two questions.
_REFUSED_SECONDS, _LOOK_SECONDS = 3.0, 0.1
# The time-outs of the calls of `require_answer`, and the topic that they ask for: a question for all may be large.
_CALLS_SECONDS, _ASKED_FOR = (1.0, 2.0, 4.0, 8.0), "__consumer_offsets"
_NOBODY = KafkaError(KafkaError._ALL_BROKERS_DOWN, "the broker that answered names no broker that is up")
# The errors of a cluster while a topic is new or its leader moves.
_SETTLING = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSize:
    """The number of a topic's records, by the first and last offsets of its partitions."""

    name: str
    partitions: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the cluster knows it. A topic that was deleted and created again has another id."""

    topic_id: str
    partitions: int
    # A cluster without authorization lets everybody write.
    writable: bool = True
    # Partitions without a leader at the moment.
    leaderless: tuple[int, ...] = ()
    # The number of in-sync replicas of each partition: it changes by itself.
    in_sync: tuple[int, ...] = field(default=(), compare=False)
    # The number of replicas of the partition that has the fewest.
    copies: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """What a topic's configuration demands of writes."""

    min_in_sync: int
    # How far a record's own timestamp may be before and after the broker's time; None: it does not matter, or is not
    # known.
    before_ms: int | None = None
    after_ms: int | None = None
    # Whether the topic is compacted: then it takes no record without a key.
    keyed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster's id, and the ids of the brokers that are up."""

    cluster_id: str | None
    brokers: frozenset[int]


class Admin:
    """A cluster's administration. A call returns within its time-out, or raises `KafkaException`."""

    def __init__(self, bootstrap: str, config: Mapping[str, Any] | None = None) -> None:
        self._errors: list[KafkaError] = []
        properties: dict[str, Any] = {
            # Requests go through one node. After its loss they wait until the client refreshes its metadata.
            "topic.metadata.refresh.interval.ms": _REFRESH_MS,
            **({} if config and "debug" in config else _QUIET),
            **(config or {}),
            "bootstrap.servers": bootstrap,
            # A question for a topic must not create it.
            "allow.auto.create.topics": False,
            "error_cb": self._errors.append,
        }
        self.client = AdminClient(revealed_properties(properties), logger=_logger)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Admin":
        """Return the administration of the cluster that a client's properties name."""
        return cls(str(revealed(config.get("bootstrap.servers", ""))), config)

    def require_answer(self) -> None:
        """Require that the cluster answers, and that a broker is up. Raises `KafkaException` with the client's error.

        If credentials are refused for 3 s, this raises without waiting for the time-out. `list_topics` asks: a broker
        that names no broker, as a fenced one does, makes `describe_cluster` abort the whole process (librdkafka 2.16).
        """
        began = time.monotonic()
        last: KafkaError | None = None
        # Short calls first, because a call reports no refusal before it ends; long ones for a cluster that is slow.
        for seconds in _CALLS_SECONDS:
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                try:
                    if self.client.list_topics(_ASKED_FOR, timeout=left).brokers:
                        # Errors from before this answer are over: the next `require_answer` must not report them.
                        self.client.poll(0)
                        self._errors.clear()
                        return
                    last = _NOBODY
                except KafkaException as error:
                    code = error.args[0].code()
                    if code == KafkaError._PARTIAL:
                        last = _NOBODY
                    elif last is None or code != KafkaError._TIMED_OUT:
                        last = error.args[0]
                time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            self.client.poll(0)
            refused = [each for each in self._errors if each.code() == KafkaError._AUTHENTICATION]
            if refused and time.monotonic() - began >= _REFUSED_SECONDS:
                raise KafkaException(refused[-1])
        met = [each for each in self._errors if each.code() != KafkaError._ALL_BROKERS_DOWN]
        raise KafkaException(met[-1] if met else last or _NOBODY)

    def cluster(self, timeout_seconds: float = _REQUEST_SECONDS) -> Cluster:
        """Return the cluster as one of its brokers knows it."""
        metadata = self.client.list_topics(timeout=timeout_seconds)
        return Cluster(cluster_id=metadata.cluster_id, brokers=frozenset(metadata.brokers))

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and return once the controller has it. An existing topic is an error."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
        for future in self.client.create_topics([topic], request_timeout=_REQUEST_SECONDS).values():
            future.result()

    def topic(self, name: str) -> TopicFacts | None:
        """Return a topic's facts, or None if the topic does not exist."""
        found = self.facts([name])[name]
        if isinstance(found, TopicFacts):
            return found
        if found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise KafkaException(found)

    def facts(self, names: Collection[str]) -> dict[str, TopicFacts | KafkaError]:
        """Return the facts of topics by one request; for a topic with an error, that error."""
        asked = self.client.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=_REQUEST_SECONDS
        )
        found: dict[str, TopicFacts | KafkaError] = {}
        for name, future in asked.items():
            try:
                topic = future.result()
            except KafkaException as error:
                found[name] = error.args[0]
                continue
            allowed = topic.authorized_operations
            writable = not allowed or AclOperation.WRITE in allowed or AclOperation.ALL in allowed
            found[name] = TopicFacts(
                topic_id=str(topic.topic_id),
                partitions=len(topic.partitions),
                writable=writable,
                leaderless=tuple(each.id for each in topic.partitions if each.leader is None or each.leader.id < 0),
                in_sync=tuple(len(each.isr) for each in topic.partitions),
                copies=min((len(each.replicas) for each in topic.partitions), default=1),
            )
        return found

    def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        """Return each topic's limits. A topic whose answer is an error is left out."""
        found = self.topic_configs(names, seconds=_SHORT_SECONDS)
        return {name: _limits(answer) for name, answer in found.items() if not isinstance(answer, KafkaError)}

    def topic_configs(
        self, names: Collection[str], *, seconds: float = _REQUEST_SECONDS
    ) -> dict[str, dict[str, str] | KafkaError]:
        """Return the configurations of topics, with the defaults in effect, by one request; or a topic's error."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found: dict[str, dict[str, str] | KafkaError] = {}
        for resource, future in self.client.describe_configs(resources, request_timeout=seconds).items():
            try:
                found[resource.name] = {name: str(entry.value) for name, entry in future.result().items()}
            except KafkaException as error:
                found[resource.name] = error.args[0]
        return found

    def unhealthy(self) -> list[str]:
        """Return the partitions that lack a leader or an in-sync replica, as `topic/partition`."""
        metadata = self.client.list_topics(timeout=_REQUEST_SECONDS)
        return [
            f"{name}/{partition.id}"
            for name, topic in sorted(metadata.topics.items())
            for partition in topic.partitions.values()
            if partition.leader < 0 or len(partition.isrs) < len(partition.replicas)
        ]

    def widen_topic(self, name: str, partitions: int) -> None:
        """Raise a topic's number of partitions."""
        wanted = NewPartitions(name, partitions)
        for future in self.client.create_partitions([wanted], request_timeout=_REQUEST_SECONDS).values():
            future.result()

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return a topic's configuration with the defaults that are in effect."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = self.client.describe_configs([resource], request_timeout=_REQUEST_SECONDS).values()
        return {name: str(entry.value) for name, entry in future.result().items()}

    def trim(self, topic: str, keep: Mapping[int, int], before_ms: int) -> None:
        """Delete records older than `before_ms`. `keep` names each partition's first offset that must stay."""
        places = [TopicPartition(topic, partition) for partition in keep]
        asked = dict.fromkeys(places, OffsetSpec.for_timestamp(before_ms))
        ends = []
        for place, future in self.client.list_offsets(asked, request_timeout=_REQUEST_SECONDS).items():
            offset = min(future.result().offset, keep[place.partition])
            if offset > 0:
                ends.append(TopicPartition(topic, place.partition, offset))
        if ends:
            for future in self.client.delete_records(ends, request_timeout=_REQUEST_SECONDS).values():
                future.result()

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics. A missing topic is an error."""
        if wanted := list(names):
            for future in self.client.delete_topics(wanted, request_timeout=_REQUEST_SECONDS).values():
                future.result()

    def names(self, prefix: str = "", *, seconds: float = _REQUEST_SECONDS) -> list[str]:
        """Return the names of topics with a prefix, without internal topics."""
        return sorted(self._partitions(prefix, seconds))

    def all_names(self, *, seconds: float = _REQUEST_SECONDS) -> frozenset[str]:
        """Return the names of all topics. A program's own may look like an internal topic's."""
        return frozenset(self.client.list_topics(timeout=seconds).topics)

    def topics(self, prefix: str = "") -> list[TopicSize]:
        """Return the sizes of topics whose names have a prefix, without internal topics."""
        found = self._partitions(prefix)
        first, last = (self._offsets(found, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return [
            TopicSize(name=name, partitions=len(found[name]), records=last[name] - first[name])
            for name in sorted(found)
        ]

    def _partitions(self, prefix: str, seconds: float = _REQUEST_SECONDS) -> dict[str, list[int]]:
        metadata = self.client.list_topics(timeout=seconds)
        return {
            name: list(topic.partitions)
            for name, topic in metadata.topics.items()
            if name.startswith(prefix) and not name.startswith("__")
        }

    def _offsets(self, topics: Mapping[str, list[int]], spec: OffsetSpec) -> dict[str, int]:
        missing = {TopicPartition(name, partition) for name, partitions in topics.items() for partition in partitions}
        sums = dict.fromkeys(topics, 0)
        deadline = time.monotonic() + _REQUEST_SECONDS
        while missing:
            answers = self.client.list_offsets(dict.fromkeys(missing, spec), request_timeout=_REQUEST_SECONDS)
            for place, future in answers.items():
                try:
                    sums[place.topic] += future.result().offset
                except KafkaException as error:
                    # The topic is new, or its leader moved: the next answer will differ.
                    if error.args[0].code() not in _SETTLING or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
                else:
                    missing.discard(place)
        return sums


def _limits(config: Mapping[str, str]) -> TopicLimits:
    own = config.get("message.timestamp.type") != "LogAppendTime"
    before, after = (
        int(value) if own and (value := config.get(f"message.timestamp.{side}.max.ms")) is not None else None
        for side in ("before", "after")
    )
    return TopicLimits(
        min_in_sync=int(config["min.insync.replicas"]),
        before_ms=before,
        after_ms=after,
        keyed="compact" in config.get("cleanup.policy", "").split(","),
    )


def cluster_at(bootstrap: str, timeout_seconds: float = 0.5) -> Cluster | None:
    """Return the cluster that answers at an address now, or None."""
    try:
        # A broker that is still starting refuses connections, which is expected here: no log entry.
        return Admin(bootstrap, {"log_level": "0"}).cluster(timeout_seconds)
    except KafkaException:
        return None
