"""NELI: leadership by a consumer group on a leader topic. The owner of partition 0 leads.

1. Every competitor joins the group. The coordinator assigns partition 0 to one member. It assigns the partition to
   another member when the owner leaves, or has been silent for the session time-out.
2. Several times within the deadline, the owner sends a heartbeat in two forms: a record to partition 0, which it must
   read back, and an offset commit, which the coordinator refuses to any member but the owner. The owner leads from the
   first accepted commit on, under a new id, while both forms succeed within the deadline. The deadline counts from the
   moment of sending.
3. Past the deadline the owner is fenced. If it still owns the partition when the connection is back, its heartbeats
   succeed again and it leads under another id. If not, the client learns that it was replaced, and joins again.
4. The deadline and the client's heartbeat interval together are shorter than the session time-out: the old leader knows
   of its end before the coordinator reassigns the partition.
5. A member that stops leaves the group, and the coordinator assigns the partition at once.
6. Refused credentials or permissions are waited out for the grace period: a leader goes on until its deadline, and
   other members join again with back-off.

Assignments are cooperative and sticky: on a topic with one partition, a new member does not take partition 0 from a
healthy leader. Neither a standby nor a leader needs a database. Records of other groups and programs are ignored.
"""

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from thresher.core.errors import ThresherError
from thresher.core.secrets import revealed_properties
from thresher.election.candidacy import Candidacy, Competitor
from thresher.election.leader_heartbeats import LeaderHeartbeats
from thresher.election.membership import Membership
from thresher.election.neli_clients import (
    GROUP_BEAT_SECONDS,
    beat_seconds,
    consumer_properties,
    producer_properties,
    session_seconds,
)
from thresher.election.problem import AccessRefused, ElectionProblem, ElectionRefused, LeaderTopicMissing
from thresher.election.refusal_grace import RefusalGrace
from thresher.election.settings import ElectionSettings
from thresher.election.tenure import Confirmed, Granted, Withdrawn
from thresher.kafka.admin import Admin
from thresher.kafka.problem import reason_of
from thresher.kafka.refusal import Refusal, refusal_of

_logger = logging.getLogger(__name__)
_client_logger = logging.getLogger(f"{__name__}.client")
_client_logger.setLevel(logging.CRITICAL)

_LEAVE_SECONDS = 8.0
_LONGEST_BACK_OFF_SECONDS = 5.0
_RECORDS = 500
# How often a missing leader topic is looked for.
_LOOK_SECONDS = 0.5
LOST = "the group has given its partition away"
# Old heartbeats are useless, so segments are small and deleted soon.
_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "600000",
    "segment.ms": "600000",
    "segment.bytes": "1048576",
}
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# Refusals that may be temporary: a token that was not refreshed in time, an ACL that is being corrected.
_ACCESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_UNWRITABLE = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_RECORD})


class Neli(Competitor):
    """Competes in one group. Only its own thread talks to Kafka."""

    waits = "the election waits for Kafka: %s"

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        kafka: Mapping[str, Any],
        settings: ElectionSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
        admin_of: Callable[[Mapping[str, Any]], Admin] = Admin.of,
    ) -> None:
        """`admin_of` returns an admin client for the cluster that Kafka properties name."""
        super().__init__("neli", clock, _LEAVE_SECONDS, logger or _logger)
        self._topic, self._group, self._kafka, self._admin_of = topic, group, kafka, admin_of
        self._settings = settings or ElectionSettings()
        self._resigning = threading.Event()
        self._refusal_grace = RefusalGrace(grace_seconds=self._settings.grace_seconds)
        self._known = False

    def resign(self) -> None:
        """Leave the group, and join it again after the others had time to get the partition."""
        self.handle(Withdrawn())
        self._resigning.set()

    # NELI's own thread

    def _run(self) -> None:
        wait = 0.1
        while not self._stopping.is_set():
            try:
                writable = self._require_topic()
                with contextlib.closing(Member(self, self._topic, self._group, self._kafka, self._settings)) as member:
                    member.writable = writable
                    wait = 0.1
                    self._compete(member)
            except (KafkaException, ThresherError) as error:
                problem = error if isinstance(error, ThresherError) else self._refused(error.args[0])
                if problem is not None:
                    if not self._is_waited_out(problem):
                        self.fail(problem)
                        return
                    wait = self._refusal_grace.wait_seconds
                self._note(str(problem or reason_of(error.args[0])))
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                self._log.exception("the election's thread broke")
                self.fail(ElectionProblem(f"the election broke, which is a bug: {type(error).__name__}: {error}"))
                return
            if self._resigning.is_set():
                # Long enough for the coordinator to assign the partition to another member.
                self._resigning.clear()
                self._stopping.wait(3 * GROUP_BEAT_SECONDS)
            else:
                self._stopping.wait(wait)
                wait = min(max(0.1, 2 * wait), _LONGEST_BACK_OFF_SECONDS)

    def _compete(self, member: "Member") -> None:
        """Take part in the group until `stop` or `resign`."""
        began = looked = self.now()
        while not self._stopping.is_set() and not self._resigning.is_set():
            trouble = member.step(self._settings.min_poll_seconds)
            self._refusal_grace = self._refusal_grace.went_on(began, self.now(), leads=self.leader_id is not None)
            if trouble is not None or self._refusal_grace.since is None:
                self._note(trouble)
            if member.topic_gone and self.now() - looked > _LOOK_SECONDS:
                member.writable = self._require_topic()
                member.topic_gone, looked = False, self.now()

    def _is_waited_out(self, problem: ThresherError) -> bool:
        """Record a problem, and return whether it is waited out."""
        if not isinstance(problem, AccessRefused):
            return False
        self._refusal_grace = self._refusal_grace.refused(self.now())
        return not self._refusal_grace.over

    def _require_topic(self) -> bool:
        """Create the leader topic if it is missing, and return whether we may write heartbeats to it."""
        admin = self._admin_of(self._kafka)
        admin.require_answer()
        facts = admin.topic(self._topic)
        # Only the brokers create internal topics and write to them.
        internal = self._topic.startswith("__")
        if facts is None and not internal:
            self._make_topic(admin)
            facts = admin.topic(self._topic)
        writable = not internal and (facts is None or facts.writable)
        if not writable and not self._known:
            self._log.info("%s is not ours to write to: the group's coordinator alone confirms leadership", self._topic)
        self._known = True
        return writable

    def _make_topic(self, admin: Admin) -> None:
        try:
            admin.create_topic(self._topic, config=_TOPIC_CONFIG)
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if refusal_of(reason) not in {Refusal.CLIENT, Refusal.TOPIC_DENIED, Refusal.ROW}:
                raise
            if self._known:
                # The topic existed before: somebody who deleted it may create it again.
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)) from error
            raise LeaderTopicMissing(
                f"the leader topic {self._topic} does not exist and cannot be created: {reason.str()}; create it with "
                "one partition, or grant Create on it"
            ) from error

    def _refused(self, reason: KafkaError) -> ElectionRefused | None:
        if _is_refused(reason):
            kind = AccessRefused if reason.code() in _ACCESS else ElectionRefused
            return kind(
                f"the broker refused: {reason.str()}; mend the credentials, or grant Read on the group {self._group} "
                f"and Describe and Read on the topic {self._topic}"
            )
        if reason.code() == KafkaError.INVALID_SESSION_TIMEOUT:
            seconds = session_seconds(self._settings.heartbeat_timeout_seconds)
            return ElectionRefused(
                f"the broker does not allow a session of {seconds:g} s: see its group.min.session.timeout.ms and "
                "group.max.session.timeout.ms, and change the heartbeat time-out"
            )
        return None


class Member:
    """One membership of the group: a consumer, and once it is needed, the producer of heartbeats."""

    def __init__(
        self, candidacy: Candidacy, topic: str, group: str, kafka: Mapping[str, Any], settings: ElectionSettings
    ) -> None:
        self._candidacy, self._topic, self._kafka = candidacy, topic, kafka
        self._settings = settings
        self.writable = True
        # Whether the client did not find the topic.
        self.topic_gone = False
        self._errors: collections.deque[KafkaError] = collections.deque(maxlen=100)
        self._heartbeats: LeaderHeartbeats | None = None
        self._beat_at = 0.0
        self._position = 0
        self._producer: Producer | None = None
        self._fenced_since: float | None = None
        # The last refusal while this process led, and its time.
        self._refusal: tuple[KafkaError, float] | None = None
        self._membership = Membership(group, candidacy.now)
        callbacks = {
            "error_cb": self._errors.append, "on_commit": self._on_commit, "stats_cb": self._membership.take_statistics,
        }  # fmt: skip
        properties = {**consumer_properties(kafka, group, settings), **callbacks}
        make = settings.consumer_factory or partial(Consumer, logger=_client_logger)
        self._consumer: Consumer = make(revealed_properties(properties))
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def close(self) -> None:
        """Leave the group and close the clients. A leadership ends."""
        self._heartbeats = None
        self._candidacy.handle(Withdrawn())
        try:
            # The client of a standby would close without leaving: whoever leads next would wait for its session to end.
            with contextlib.suppress(KafkaException):
                self._consumer.unsubscribe()
            self._consumer.close()
        finally:
            if self._producer is not None:
                self._producer.purge(blocking=False)
            self._producer = None

    def step(self, seconds: float) -> str | None:
        """Process what has arrived and send what is due; return the current trouble, or None.

        Raises `KafkaException` for an error after which the membership cannot go on.
        """
        trouble = None
        for message in self._consumer.consume(_RECORDS, seconds):
            error = message.error()
            if error is None:
                self._hear(message)
            elif error.fatal() or _is_refused(error):
                self._raise_unless_leading(error)
            else:
                self.topic_gone = self.topic_gone or error.code() in _GONE
                trouble = reason_of(error)
        if self._producer is not None:
            self._producer.poll(0)
        while self._errors:
            error = self._errors.popleft()
            if error.fatal() or refusal_of(error) is Refusal.CLIENT:
                self._raise_unless_leading(error)
        self._confirm()
        self._send()
        if self._refusal is not None:
            return self._refusal[0].str()
        return trouble or self._membership.trouble

    def _raise_unless_leading(self, error: KafkaError) -> None:
        """Raise a refusal, unless this process leads: then the client retries by itself until the deadline."""
        if error.fatal() or error.code() not in _ACCESS or self._candidacy.leader_id is None:
            raise KafkaException(error)
        self._refusal = (error, self._candidacy.now())

    def _hear(self, message: Message) -> None:
        if message.partition() == 0 and self._heartbeats is not None:
            self._position = (message.offset() or 0) + 1
            key, value = message.key(), message.value()
            self._heartbeats.hear(_bytes(key), _bytes(value))

    def _confirm(self) -> None:
        """Move the deadline by the heartbeats that succeeded.

        Raises if the partition is ours and no heartbeat has succeeded for long: the clients are then created again.
        """
        if self._heartbeats is None:
            return
        timeout = self._settings.heartbeat_timeout_seconds
        until, now = self._heartbeats.until(timeout), self._candidacy.now()
        self._candidacy.handle(Confirmed(until=until))
        if self._refusal is not None:
            error, met = self._refusal
            if self._candidacy.leader_id is None:
                raise KafkaException(error)
            if until - timeout > met:
                # Heartbeats that were sent after the refusal have succeeded.
                self._refusal = None
        if self._candidacy.leader_id is not None:
            self._fenced_since = None
        elif self._fenced_since is None:
            self._fenced_since = now
        elif now - self._fenced_since > session_seconds(timeout) + timeout:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no sign of life has come back"))

    def _send(self) -> None:
        now = self._candidacy.now()
        if self._heartbeats is None or now < self._beat_at:
            return
        self._beat_at = now + beat_seconds(self._settings)
        key, beat = self._heartbeats.beat(now)
        # A heartbeat that cannot be sent is not retried: the next one follows.
        with contextlib.suppress(KafkaException):
            place = TopicPartition(self._topic, 0, self._position, metadata=beat)
            self._consumer.commit(offsets=[place], asynchronous=True)
        if self._heartbeats.recorded:
            if self._producer is None:
                properties = {**producer_properties(self._kafka, self._settings), "error_cb": self._errors.append}
                self._producer = Producer(revealed_properties(properties), logger=_client_logger)
            with contextlib.suppress(KafkaException, BufferError):
                self._producer.produce(self._topic, beat, key, 0, on_delivery=self._on_delivery)
            self._producer.poll(0)

    # Callbacks: run inside of calls of the consumer and the producer

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and error.code() in _UNWRITABLE:
            self.writable = False
            if self._heartbeats is not None:
                self._heartbeats.recorded = False

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            if error is None and place.error is None and self._heartbeats is not None:
                self._heartbeats.confirm(place.metadata)
                self._confirm()

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._membership.assigned()
        # Partition 0 is read from its end: older heartbeats do not count. Other partitions are paused.
        starts = [TopicPartition(each.topic, each.partition, 0 if each.partition else OFFSET_END) for each in places]
        consumer.incremental_assign(starts)
        if others := [each for each in starts if each.partition]:
            consumer.pause(others)
        if any(each.partition == 0 for each in places):
            self._candidacy.leader = None
            now = self._candidacy.now()
            self._heartbeats = LeaderHeartbeats(self._membership.group, recorded=self.writable, began=now)
            self._beat_at, self._fenced_since = now, None
            self._candidacy.handle(Granted())
            self._send()
        elif self._heartbeats is None:
            self._candidacy.leader = f"another member of the group {self._membership.group}"

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._on_gone(consumer, places, None)

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._on_gone(consumer, places, LOST)

    def _on_gone(self, consumer: Consumer, places: list[TopicPartition], reason: str | None) -> None:
        if any(each.partition == 0 for each in places):
            # A refusal that was met while leading ends with the leadership.
            self._heartbeats = self._refusal = None
            self._candidacy.handle(Withdrawn(reason=reason))
        consumer.incremental_unassign(places)


def _is_refused(error: KafkaError) -> bool:
    return refusal_of(error) in {Refusal.CLIENT, Refusal.TOPIC_DENIED}


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
