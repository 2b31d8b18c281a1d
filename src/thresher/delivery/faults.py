"""What the records that were not delivered tell: whose fault it was, and whether trying again may help.

1. A broker that refuses a time that we gave, or our progress, is nobody's fault in the outbox: the attempt ends.
2. A topic's fault is the whole topic's. A row's own where its place is known; where a batch was refused, anybody's.
3. What time may mend is a fault without a kind: the topic's, or at least once one row's where the wave has no other of
   its topic and key. A producer that is fenced is no such thing: who tried again would fence its successor in its turn.
4. Partitions that did not answer are their topics' fault, unless the whole transaction was not answered for.
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

# The partitions that a message names.
_NAMED = 5
_OF_TOPIC = frozenset({Refusal.TOPIC, Refusal.TOPIC_DENIED})
_OF_RECORD = frozenset({Refusal.ROW, Refusal.TIME})
# What undelivered records have where the broker tells a bad record from the others of its batch.
_TOLD_APART = _OF_RECORD | {Refusal.NEIGHBOUR}
# Of more rows, those that are wanting are found by halves.
_SINGLY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Interprets for one shard. `lenient`: the protocol bears faults that time may mend."""

    progress: str
    topics: TopicSurvey
    lenient: bool

    def of(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault]:
        """Return whose fault it was; raise where it was no row's and no topic's."""
        self.require_epoch(undelivered)
        if self.lenient:
            # The empty record of progress: nothing rests on it. Where the client holds it against the transaction, it
            # does not commit.
            undelivered = [
                each for each in undelivered if (each.topic, each.refusal) != (self.progress, Refusal.MOMENT)
            ]
        if undelivered and self.lenient and (faults := self._named(undelivered, produced)) is not None:
            return faults
        if undelivered and all(each.refusal is Refusal.NEIGHBOUR for each in undelivered):
            # The client failed the transaction as a whole, and does not say for which topic.
            return self._lost_topics(undelivered)
        _require_clock(undelivered, produced)
        return self._judged(undelivered, produced) or [self._fault(each) for each in undelivered]

    def _judged(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault]:
        """Return the rows that a broker found wanting, where it told them from their neighbours; else nothing.

        It names a record, and the client tells us its topic and key: several rows may have those. Of several records
        the client does not say what was wrong with them.
        """
        told_apart = all(each.place is None and each.refusal in _TOLD_APART for each in undelivered)
        wanting = {(each.topic, each.key): each for each in undelivered if each.refusal in _OF_RECORD}
        places = _places(produced) if told_apart and wanting else {}
        found = [(each, places.get(name, [])) for name, each in wanting.items()]
        if sum(len(own) for _, own in found) > _SINGLY:
            return []
        faults = []
        for each, own in found:
            for place, timed in own:
                # A time that a clock gave is no row's fault: a try of the row alone will tell that too.
                sure = len(own) == 1 and each.refusal is Refusal.TIME and timed
                faults.append(replace(self._fault(each), place=place, doubtful=not sure))
        return faults

    def of_silence(self, problem: RecordsUnanswered) -> list[Fault]:
        """Return the topics that did not answer. Where not even progress was answered for, only unhealthy ones.

        Then the transaction as a whole may be kept waiting, and a healthy topic is silent because of that.
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
                why=unhealthy.get(topic) or f"no answer from {', '.join(owing[topic][:_NAMED])} in time",
                topic=topic,
            )
            for topic in blamed
        ]

    def require_progress(self, undelivered: Sequence[Undelivered]) -> None:
        """Raise if the topic of progress took no record."""
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
            # The cause says that it was a fence: it is counted as one.
            cause = KafkaException(KafkaError(KafkaError._FENCED, fenced.why))
            raise BrokerLost(f"a record for {fenced.topic} was not delivered: {fenced.why}") from cause

    def _named(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault] | None:
        """Return faults that are single rows' alone; None if there are others. A wave has one row of a key."""
        places = _places(produced)
        faults = []
        for each in undelivered:
            if each.topic == self.progress or each.refusal in _OF_TOPIC:
                return None
            named = places.get((each.topic, each.key), [])
            own = [each.place] if each.place is not None else [place for place, _ in named]
            # A broker refuses records by the batch, and some of them for nothing.
            if len(own) != 1 or (each.place is None and each.refusal is not Refusal.MOMENT):
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
        if self.lenient and undelivered.refusal is Refusal.MOMENT:
            return Fault(kind=None, why=f"{undelivered.topic}: {undelivered.why}")
        if undelivered.refusal is Refusal.MOMENT and undelivered.topic != self.progress:
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
        )


def _places(produced: Rows) -> dict[tuple[str, bytes | None], list[tuple[int, bool]]]:
    """Return the places of records by topic and key, each with whether it has a time of its own."""
    places: dict[tuple[str, bytes | None], list[tuple[int, bool]]] = {}
    for place, record in produced.records():
        # By position: rows that are kept as columns give plain tuples.
        places.setdefault((record[0], record[2]), []).append((place, record[4] > 0))
    return places


def _require_clock(undelivered: Sequence[Undelivered], produced: Rows) -> None:
    """Raise if the broker refused a time that we gave: then no row is at fault, and all would be set aside."""
    refused = next((each for each in undelivered if each.refusal is Refusal.TIME), None)
    if refused is None or any(record[4] for _, record in produced.records()):
        return
    raise BrokerLost(
        f"the broker refused the time of a record for {refused.topic} that has the database's: {refused.why}; set "
        "the clocks of both right, or change the topic's message.timestamp.before.max.ms or …after.max.ms"
    )
