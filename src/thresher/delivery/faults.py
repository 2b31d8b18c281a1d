"""What the records that were not delivered tell: whose fault it was, and whether trying again may help.

1. A broker that refuses a time that we gave, or our progress, is nobody's fault in the outbox: the attempt ends.
2. A topic's fault is the whole topic's. A row's own where its place is known; where a batch was refused, anybody's.
3. At least once, what time may mend is a fault without a kind: one row's where the wave has no other of its topic and
   key. A producer that is fenced is no such thing: who tried again would fence its successor in its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thresher.delivery.effects import Fault
from thresher.delivery.fate import DEAD_KINDS
from thresher.delivery.row import Rows
from thresher.kafka.problem import BrokerLost, BrokerRefused
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import TopicSurvey, Unavailable
from thresher.kafka.transactional import Undelivered

_OF_TOPIC = frozenset({Refusal.TOPIC, Refusal.TOPIC_DENIED})


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
        return [self._fault(each) for each in undelivered]

    def require_epoch(self, undelivered: Sequence[Undelivered]) -> None:
        """Raise if the producer was fenced."""
        fenced = next((each for each in undelivered if each.refusal is Refusal.FENCED), None)
        if fenced is not None:
            raise BrokerLost(f"a record for {fenced.topic} was not delivered: {fenced.why}")

    def _named(self, undelivered: Sequence[Undelivered], produced: Rows) -> list[Fault] | None:
        """Return faults that are single rows' alone; None if there are others. A wave has one row of a key."""
        places: dict[Any, list[int]] = {}
        for place, record in produced.records():
            places.setdefault((record[0], record[2]), []).append(place)
        faults = []
        for each in undelivered:
            if each.topic == self.progress or each.refusal in _OF_TOPIC:
                return None
            own = [each.place] if each.place is not None else places.get((each.topic, each.key), [])
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
            progress = self.topics.ask([self.progress])[self.progress]
            if isinstance(progress, Unavailable) and progress.refusal is Refusal.TOPIC_DENIED:
                raise BrokerRefused(f"{progress.why}; grant the relay Write on its progress topic")
            raise BrokerLost(f"the transaction failed: {undelivered[0].why}")
        return faults

    def _fault(self, undelivered: Undelivered) -> Fault:
        kind = DEAD_KINDS.get(undelivered.refusal)
        if self.lenient and undelivered.refusal is Refusal.MOMENT:
            return Fault(kind=None, why=f"{undelivered.topic}: {undelivered.why}")
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
        )


def _require_clock(undelivered: Sequence[Undelivered], produced: Rows) -> None:
    """Raise if the broker refused a time that we gave: then no row is at fault, and all would be set aside."""
    refused = next((each for each in undelivered if each.refusal is Refusal.TIME), None)
    if refused is None or any(record[4] for _, record in produced.records()):
        return
    raise BrokerLost(
        f"the broker refused the time of a record for {refused.topic} that has the database's: {refused.why}; set "
        "the clocks of both right, or change the topic's message.timestamp.before.max.ms or …after.max.ms"
    )
