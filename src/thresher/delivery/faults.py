"""Finds out from undelivered records which row or topic is at fault, and whether trying again may help.

1. If the broker refuses the progress record, no row is at fault: the attempt ends. If it refuses a timestamp that the
   relay gave, the topic waits: its limits or the clocks have to change.
2. A refusal of a topic is the whole topic's fault. Any other refusal is the row's, if its place is known; if a batch
   was refused, any of its rows may be at fault.
3. A refusal that may pass by itself is a fault without a kind. It is the topic's; under at-least-once it is the row's,
   if the wave has no other row of its topic and key. A fenced producer ends the attempt: another `init_transactions`
   would fence its successor.
4. If partitions did not answer, their topics are at fault, unless not even the progress partition answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException

from thresher.delivery.effects import Fault
from thresher.delivery.fate import DEAD_KINDS
from thresher.delivery.row import Rows
from thresher.kafka.problem import BrokerLost, BrokerRefused
from thresher.kafka.producer_problem import RecordsUnanswered
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import TopicSurvey, Unavailable
from thresher.kafka.transactional import Undelivered

# How many partitions a message names.
_MAX_NAMED = 5
_OF_TOPIC = frozenset({Refusal.TOPIC, Refusal.TOPIC_DENIED})
_OF_RECORD = frozenset({Refusal.ROW, Refusal.TIME})
# The only refusals that occur if the broker names the bad records of a batch and spares their neighbours.
_TOLD_APART = _OF_RECORD | {Refusal.CAUSED_BY_ANOTHER}
# If more rows may be at fault, they are tried by halves instead of one by one.
_MAX_TRIED_SINGLY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Finds the faults of one shard's transactions.

    `lenient`: the protocol can commit a transaction although single records failed. At-least-once only.
    """

    progress: str
    topics: TopicSurvey
    lenient: bool

    def of(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault]:
        """Return which rows or topics are at fault. Raises `BrokerLost` if records failed for another reason."""
        self.require_epoch(undelivered)
        if self.lenient:
            # The empty record that opens a transaction on the progress partition: nothing is lost without it. If its
            # failure has doomed the transaction, the commit fails.
            undelivered = [
                each for each in undelivered if (each.topic, each.refusal) != (self.progress, Refusal.TRANSIENT)
            ]
        if undelivered and self.lenient and (faults := self._named(undelivered, produced)) is not None:
            return faults
        if undelivered and all(each.refusal is Refusal.CAUSED_BY_ANOTHER for each in undelivered):
            # The client failed the transaction as a whole, and does not say because of which topic.
            return self._lost_topics(undelivered)
        return (
            self._of_clocks(undelivered, produced)
            or self._judged(undelivered, produced)
            or [self._fault(each) for each in undelivered]
        )

    def _of_clocks(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault]:
        """Return a fault for each topic that refuses a timestamp which the relay gave.

        No row is at fault. A clock is wrong, or the topic's owner has set narrow limits: then other topics go on.
        """
        timed = {record[0] for _, record in produced.records() if record[4]}
        refused = {each.topic: each for each in undelivered if each.refusal is Refusal.TIME and each.topic not in timed}
        if self.progress in refused:
            raise BrokerLost(_clocks(refused[self.progress]))
        return [Fault(kind=None, why=_clocks(each), topic=topic, refused_by=topic) for topic, each in refused.items()]

    def _judged(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault]:
        """Return the faults of the rows that a broker named as bad. Empty if it named none, or too many.

        The client passes on only the topic and key of a bad record, which several rows may share. If several records
        are bad, the client does not say what is wrong with each.
        """
        told_apart = all(each.place is None and each.refusal in _TOLD_APART for each in undelivered)
        wanting = {(each.topic, each.key): each for each in undelivered if each.refusal in _OF_RECORD}
        places = _places(produced) if told_apart and wanting else {}
        found = [(each, places.get(name, [])) for name, each in wanting.items()]
        if sum(len(own) for _, own in found) > _MAX_TRIED_SINGLY:
            return []
        faults = []
        for each, own in found:
            for place, timed in own:
                # A timestamp that a clock gave is no row's fault: only a try of the row alone shows that.
                sure = len(own) == 1 and each.refusal is Refusal.TIME and timed
                faults.append(replace(self._fault(each), place=place, doubtful=not sure))
        return faults

    def of_silence(self, problem: RecordsUnanswered) -> list[Fault]:
        """Return a fault for each topic that did not answer.

        If not even the progress partition answered, only topics that the cluster calls unhealthy are at fault: the
        whole transaction may be stuck, and healthy topics are silent because of that.
        """
        owing: dict[str, list[str]] = {}
        for topic, partition, count in problem.partitions:
            owing.setdefault(topic, []).append(f"{topic}/{partition} for {count} records")
        stuck = owing.pop(self.progress, None) is not None
        statuses = self.topics.ask(owing)
        self.topics.forget()
        unhealthy = {topic: status.why for topic, status in statuses.items() if isinstance(status, Unavailable)}
        blamed = unhealthy if stuck else dict.fromkeys(owing, "")
        if not blamed:
            return [Fault(kind=None, why=str(problem))]
        return [
            Fault(
                kind=None,
                why=unhealthy.get(topic) or f"no answer from {', '.join(owing[topic][:_MAX_NAMED])} in time",
                topic=topic,
            )
            for topic in blamed
        ]

    def require_progress(self, undelivered: Sequence[Undelivered]) -> None:
        """Raise if the progress topic did not take a record."""
        if not undelivered:
            return
        self.require_epoch(undelivered)
        progress = self.topics.ask([self.progress])[self.progress]
        if isinstance(progress, Unavailable) and progress.refusal is Refusal.TOPIC_DENIED:
            raise BrokerRefused(f"{progress.why}; grant the relay Write on its progress topic")
        raise BrokerLost(f"the transaction failed: {undelivered[0].why}")

    def require_epoch(self, undelivered: Sequence[Undelivered]) -> None:
        """Raise if the producer was fenced."""
        fenced = next((each for each in undelivered if each.refusal is Refusal.FENCED), None)
        if fenced is not None:
            # By this cause, the error is counted as a fence.
            cause = KafkaException(KafkaError(KafkaError._FENCED, fenced.why))
            raise BrokerLost(f"a record for {fenced.topic} was not delivered: {fenced.why}") from cause

    def _named(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault] | None:
        """Return the faults if each is a single row's; otherwise None. A wave has at most one row of a key."""
        places = _places(produced)
        faults = []
        for each in undelivered:
            if each.topic == self.progress or each.refusal in _OF_TOPIC:
                return None
            named = places.get((each.topic, each.key), [])
            own = [each.place] if each.place is not None else [place for place, _ in named]
            # A broker refuses whole batches, so a record that it refused need not be bad itself.
            if len(own) != 1 or (each.place is None and each.refusal is not Refusal.TRANSIENT):
                return None
            kind = DEAD_KINDS.get(each.refusal)
            faults.append(Fault(kind=kind, why=f"{each.topic}: {each.why}", place=own[0]))
        return faults

    def _lost_topics(self, undelivered: Sequence[Undelivered]) -> list[Fault]:
        topics = {each.topic for each in undelivered} - {self.progress}
        statuses = self.topics.ask(topics)
        self.topics.forget()
        faults = [
            Fault(kind=DEAD_KINDS[status.refusal], why=status.why, topic=topic)
            for topic, status in statuses.items()
            if isinstance(status, Unavailable) and status.refusal in DEAD_KINDS
        ]
        if not faults:
            self.require_progress(undelivered)
        return faults

    def _fault(self, undelivered: Undelivered) -> Fault:
        kind = DEAD_KINDS.get(undelivered.refusal)
        if self.lenient and undelivered.refusal is Refusal.TRANSIENT:
            return Fault(kind=None, why=f"{undelivered.topic}: {undelivered.why}")
        if undelivered.refusal is Refusal.TRANSIENT and undelivered.topic != self.progress:
            self.topics.forget(undelivered.topic)
            return Fault(kind=None, why=f"{undelivered.topic}: {undelivered.why}", topic=undelivered.topic)
        if kind is None or undelivered.topic == self.progress:
            raise BrokerLost(f"a record for {undelivered.topic} was not delivered: {undelivered.why}")
        of_topic = undelivered.refusal in _OF_TOPIC
        if of_topic:
            self.topics.forget(undelivered.topic)
        return Fault(
            kind=kind,
            why=f"{undelivered.topic}: {undelivered.why}",
            place=None if of_topic else undelivered.place,
            topic=undelivered.topic if of_topic else None,
            passing=undelivered.refusal is Refusal.TIME,
            refused_by=None if of_topic else undelivered.topic,
        )


def _places(produced: Rows) -> dict[tuple[str, bytes | None], list[tuple[int, bool]]]:
    """Return the places of records by topic and key, each with whether the record has its own timestamp."""
    places: dict[tuple[str, bytes | None], list[tuple[int, bool]]] = {}
    for place, record in produced.records():
        # By position: `ColumnRows` gives plain tuples.
        places.setdefault((record[0], record[2]), []).append((place, record[4] > 0))
    return places


def _clocks(refused: Undelivered) -> str:
    return (
        f"the broker refused the timestamp of a record for {refused.topic}, which is the database's time: "
        f"{refused.why}; set the clocks of both right, or change the topic's message.timestamp.before.max.ms or "
        "…after.max.ms"
    )
