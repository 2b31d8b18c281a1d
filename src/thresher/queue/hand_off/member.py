"""The thread of one consumer: it joins the queue's group, polls, hands off, and fills the receive buffer.

A retryable error ends the membership, and the thread joins again after a wait. Any other error ends the thread, and
every `receive` raises it. A stop during a hand-off abandons the hand-off and loses nothing: the tracker redelivers
committed messages, and the group reads the others again.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import Consumer

from thresher.core.errors import ThresherError
from thresher.kafka.committed_tail import TailUnread
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import ProducerProblem
from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.configuration import QueueConfig
from thresher.queue.hand_off.first_offsets import Beginning
from thresher.queue.hand_off.group import GroupMember
from thresher.queue.hand_off.polled_records import Batch, PolledRecords
from thresher.queue.hand_off.prefetch_size import PrefetchSize
from thresher.queue.hand_off.protocol import (
    BackOff,
    Deliver,
    Effect,
    NoMember,
    Outcome,
    ReadCommitted,
    Refused,
    ReplaceProducer,
    Steps,
    Uncertain,
    WriteStarts,
)
from thresher.queue.hand_off.starting_offsets import StartingOffsets
from thresher.queue.in_progress import InProgress
from thresher.queue.metrics import Figures

logger = logging.getLogger(__name__)

# The maximum size of a batch: while its transaction is open, later markers of all queues are invisible to readers.
BATCH_BYTES = 8_000_000
# How often offsets move past skipped records at least: retention must not overtake the group.
_PASS_SECONDS = 5.0
# How long the buffer may be full before partitions are paused: a pause drops the client's prefetched records.
_FULL_SECONDS = 1.0
# How often the member polls at least, however slow the application is.
_SERVE_SECONDS = 1.0
_REST_SECONDS, _LONGEST_REST_SECONDS = 0.1, 5.0


class Stopped(Exception):  # noqa: N818 - it never leaves the thread
    """The consumer is being closed."""


class Rejoin(Exception):  # noqa: N818 - it never leaves the thread
    """Another member has moved the group's offsets: only a new membership shows which partitions are ours."""


class Writing(Protocol):
    """Writes Starts and offsets: in one transaction, or in two steps."""

    # The marker partition that the last Starts went to.
    partition: int

    def steps(self, batch: Batch) -> Steps:
        """Return the hand-off of a batch."""

    def renew(self) -> None:
        """End any open transaction. Raises `ProducerProblem` if that is not certain."""

    def close(self) -> None:
        """Release the producer."""

    def commit_first(self, ends: Mapping[int, int], member: GroupMember) -> None:
        """Commit the group's first offsets. Raises `BrokerLost` if that is not certain."""

    def do(self, effect: Effect, member: GroupMember) -> NoMember | Refused | Uncertain | None:
        """Run an effect that writes."""


class MemberThread:
    """The member thread and its state. `clock` is that of `InProgress` and `GroupMember`: `time.monotonic`."""

    def __init__(
        self,
        queue: bytes,
        config: QueueConfig,
        client: Callable[[], Consumer],
        writing: Writing,
        starting_offsets: StartingOffsets,
        buffer: ReceiveBuffer,
        in_progress: InProgress,
        figures: Figures,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._config, self._client = queue, config, client
        self._writing, self._starting_offsets = writing, starting_offsets
        self._buffer, self._in_progress, self._figures = buffer, in_progress, figures
        self._stop, self._clock = threading.Event(), clock
        self._prefetch_size = PrefetchSize(config.consumer_receive_buffer_capacity)
        self._passed_at = self._written_at = 0.0
        self._full_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="thresher-queue-member", daemon=True)

    def start(self) -> None:
        """Start the thread, which joins the group."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Leave the group. Return False if that took longer than `seconds`."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = self._clock()
            try:
                self._run_membership()
            except Stopped:
                break
            except Rejoin:
                failures = 0
            except (BrokerLost, ProducerProblem, TailUnread) as error:
                failures = failures + 1 if self._clock() - began < 60 else 1
                logger.warning("the consumer joins its group again: %s", error, extra={"queue": repr(self._queue)})
                self._stop.wait(min(_LONGEST_REST_SECONDS, _REST_SECONDS * 2**failures))
            except BaseException as error:  # the application's next `receive` raises it
                if not isinstance(error, ThresherError):
                    logger.exception("the consumer ends by a fault of its own")
                self._buffer.fail(error)
                break
        self._buffer.end()
        self._writing.close()

    def _run_membership(self) -> None:
        """Join the group, and hand off until the membership ends."""
        polled = PolledRecords(
            most_skipped=self._config.consumer_max_messages_per_commit,
            most_bytes=BATCH_BYTES,
            largest=self._config.max_message_bytes,
        )
        self._starting_offsets.require_topics()
        self._writing.renew()
        member = GroupMember(
            self._queue, self._config.message_topic, self._client(), polled, self._figures, self._begin
        )
        try:
            while not self._stop.is_set():
                self.run_once(member, polled)
        finally:
            member.close()

    def _begin(self, partitions: list[int], member: GroupMember) -> Beginning:
        return self._starting_offsets.begin(partitions, lambda ends: self._writing.commit_first(ends, member))

    def run_once(self, member: GroupMember, polled: PolledRecords) -> None:
        """Poll, and hand off a batch if there is one and the buffer has room: one round of the thread's loop."""
        room = self._room()
        if room <= 0:
            self._wait_for_room(member)
            return
        self._full_since = None
        if len(polled) < room:
            member.resume()
            member.poll(0.0 if len(polled) else self._config.consumer_next_message_timeout / 1000)
        elif self._clock() - member.polled_at > _SERVE_SECONDS:
            # While a slow application works through the polled records, the member must keep polling to stay in the
            # group.
            member.pause()
            member.poll(0.0)
        now = self._clock()
        batch = polled.cut(room, pass_skipped=now - self._passed_at > _PASS_SECONDS)
        if batch is not None:
            self._hand_off(batch, member, polled)
            self._passed_at = self._clock()

    def _room(self) -> int:
        free = self._config.max_in_progress - len(self._in_progress)
        return min(free, self._prefetch_size.room(len(self._buffer), self._clock()))

    def _wait_for_room(self, member: GroupMember) -> None:
        now = self._clock()
        self._full_since = self._full_since or now
        if now - self._full_since < _FULL_SECONDS:
            # An ack makes room too, but sends no notification to this thread: so the wait is short.
            if len(self._buffer) > self._prefetch_size.low:
                self._buffer.await_room(self._prefetch_size.low, 0.02)
            else:
                self._stop.wait(0.005)
        else:
            member.pause()
            member.poll(0.1)

    def _hand_off(self, batch: Batch, member: GroupMember, polled: PolledRecords) -> None:
        epoch = member.epoch
        steps = self._writing.steps(batch)
        answer: Any = None
        try:
            while True:
                answer = self._do(steps.send(answer), member, polled, epoch)
        except StopIteration as end:
            if end.value is Outcome.GIVEN_UP:
                self._figures.count("hand_offs_given_up")
                if member.epoch == epoch:
                    raise Rejoin from None

    def _do(self, effect: Effect, member: GroupMember, polled: PolledRecords, epoch: int) -> Any:
        match effect:
            case Deliver(batch):
                self._deliver(batch, polled)
                return None
            case ReplaceProducer():
                self._until_done(self._writing.renew, member)
                return member.epoch != epoch
            case ReadCommitted(partitions):
                return self._until_done(lambda: self._starting_offsets.committed(partitions), member)
            case BackOff(tries):
                self._rest(tries, member)
                return member.epoch != epoch
            case WriteStarts():
                # The time from which KeepAlives are due. The broker's timestamp of the Starts is later, so KeepAlives
                # are never late.
                self._written_at = self._clock()
        answer = self._writing.do(effect, member)
        if answer is not None:
            logger.warning(
                "a hand-off did not succeed at once: %s",
                answer.why,
                extra={"queue": repr(self._queue), "step": type(effect).__name__},
            )
        return answer

    def _deliver(self, batch: Batch, polled: PolledRecords) -> None:
        polled.passed(batch)
        if batch.dead_reason is not None:
            self._figures.count("dead")
            logger.warning(
                "a message is a dead letter: it is too large, or its Start was refused",
                extra={"message_id": str(batch.records[0].message_id), "reason": batch.dead_reason},
            )
        elif batch.records:
            self._figures.count("hand_offs")
            self._buffer.put(self._in_progress.started(batch.records, self._writing.partition, self._written_at))
            self._prefetch_size.handed(len(self._buffer), self._clock())

    def _until_done(self, call: Callable[[], Any], member: GroupMember) -> Any:
        for tries in itertools.count(1):
            try:
                return call()
            except (BrokerLost, ProducerProblem) as error:
                logger.warning("a hand-off waits for the broker: %s", error, extra={"queue": repr(self._queue)})
                self._rest(tries, member)
        raise AssertionError("the count has no end")

    def _rest(self, tries: int, member: GroupMember) -> None:
        """Wait, longer after each try, and keep polling. Raises `Stopped`."""
        member.pause()
        deadline = self._clock() + min(_LONGEST_REST_SECONDS, _REST_SECONDS * 2 ** min(tries, 10))
        while (left := deadline - self._clock()) > 0:
            if self._stop.is_set():
                raise Stopped
            member.poll(min(left, 0.1))
