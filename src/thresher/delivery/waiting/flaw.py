"""Why a topic would not take a record now, by what the cluster says: the record need not be tried to find that out."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from thresher.delivery.fate import Kind
from thresher.delivery.row import Record, Rows
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus

# By how much the clocks of a broker and the database may differ: a timestamp this near to a limit is tried.
_CLOCKS_MS = 60_000


class Flaw(NamedTuple):
    """Why a topic would not take a row now, and as what the row is set aside once its grace is over."""

    kind: Kind
    why: str
    # There is no grace: the cluster was asked just now, and a try would find the same.
    at_once: bool = False


def flaw_of(plan: Any, surveyed: Surveyed) -> Flaw | None:
    """Return why the topic would not take a record now: it lacks the partition, or wants a key or another timestamp."""
    if not isinstance(plan, Record):
        return None
    there = _beyond(plan, surveyed.topics)
    if there is not None:
        why = f"partition {plan.partition} of {plan.topic} does not exist: the topic has {there} partitions"
        return Flaw(Kind.NO_PARTITION, why)
    status = surveyed.topics.get(plan.topic)
    if plan.key is None and isinstance(status, Available) and status.keyed:
        why = f"{plan.topic} takes no record without a key (cleanup.policy=compact)"
        return Flaw(Kind.REJECTED, why, at_once=True)
    if plan.timestamp <= 0 or surveyed.server_ms is None or not isinstance(status, Available):
        return None
    ahead = plan.timestamp - surveyed.server_ms
    for side, limit, distance in (("after", status.after_ms, ahead), ("before", status.before_ms, -ahead)):
        if limit is not None and distance > limit + _CLOCKS_MS:
            why = f"{plan.topic} takes no timestamp so far {side} the present (message.timestamp.{side}.max.ms={limit})"
            return Flaw(Kind.REJECTED, why)
    return None


def lacks_keys(rows: Rows, surveyed: Surveyed) -> bool:
    """Whether a row may lack the key that its topic demands."""
    return any(isinstance(each, Available) and each.keyed for each in surveyed.topics.values()) and None in rows.keys


def _beyond(plan: Any, statuses: Mapping[str, TopicStatus]) -> int | None:
    """Return the topic's number of partitions if the record names one beyond them; otherwise None."""
    status = statuses.get(plan.topic) if isinstance(plan, Record) and plan.partition >= 0 else None
    if not isinstance(status, Available) or plan.partition < status.partitions:
        return None
    return status.partitions
