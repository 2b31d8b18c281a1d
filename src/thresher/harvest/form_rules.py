"""The rules between a relay's keys: a combination that cannot keep its guarantee is refused, with the reason."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from thresher.config.report import Problem
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.db.names import schema_within
from thresher.delivery.names import valid_name
from thresher.delivery.rules import Poison
from thresher.election.settings import ElectionKind
from thresher.outbox.shape import Shape
from thresher.relay.settings import Coordination, Delivery, Dispatch, Settling
from thresher.service import form as service_form

if TYPE_CHECKING:
    from thresher.harvest.form import RelayForm

# Without `leader_group`, which may also serve as the relay's name.
OF_ELECTION = {**service_form.OF_ELECTION, "lease_seconds": ElectionKind.LEASE}
# Keys that only topic-lock coordination uses.
OF_LOCKING = ("lock_seconds", "rest_seconds", "split_topics", "compact_topics")


def has_a_name(form: "RelayForm", _: Mapping[str, Any]) -> Iterator[Problem]:
    """The relay needs a name, which is never guessed."""
    if not form.identity:
        yield (
            "name",
            "it is missing: use the same name in all processes of this relay, and another for every other outbox",
        )
    elif form.name is None and not valid_name(form.identity):
        yield "leader_group", "it cannot also be the relay's name, which has only a-z A-Z 0-9 . _ -: give 'name' too"


def has_a_table(form: "RelayForm", given: Mapping[str, Any]) -> Iterator[Problem]:
    """The outbox needs a valid table name, without a schema in it."""
    if why := schema_within("outbox", given.get("outbox"), form.schema_):
        yield "outbox", why
        return
    try:
        TableName(table=form.outbox, schema=form.schema_)
    except InvalidInput as error:
        yield "outbox", str(error)


def settles_its_shape(form: "RelayForm", _: Mapping[str, Any]) -> Iterator[Problem]:
    """Rows can be stamped only if the table has a column for it."""
    if form.shape is not Shape.THRESHER and form.settle is Settling.STAMP:
        whose = "Deimos'" if form.shape is Shape.DEIMOS else "goharvest's"
        yield "settle", f"{whose} table has no column for a dispatched time; use 'delete'"


def locks_topics(form: "RelayForm", given: Mapping[str, Any]) -> Iterator[Problem]:
    """Relays with topic locks are exactly-once, and have neither a leader nor an election."""
    if form.coordination is Coordination.LEADER:
        for key in OF_LOCKING:
            if key in given:
                yield key, "it has no effect with 'coordination: leader': leave it out, or use 'topic-lock'"
        return
    if form.delivery is Delivery.AT_LEAST_ONCE:
        yield "delivery", "topic-lock sends each batch in one Kafka transaction: only 'exactly-once' is possible"
    if form.transform:
        yield (
            "transform",
            "topic-lock allows none: a transform could send rows to a topic whose lock the relay does not hold",
        )
    if form.dispatch is Dispatch.IMMEDIATE:
        yield (
            "dispatch",
            "'immediate' is not possible with topic-lock, which is exactly-once; use 'coordination: leader'",
        )
    if form.archive_after_seconds is not None:
        yield "archive_after_seconds", "topic-lock has no leader that archives: run 'thresher archive' instead"
    for key in ("election", *OF_ELECTION):
        if key in given:
            yield key, "topic-lock has no election: leave it out"


def archives_what_stays(form: "RelayForm", _: Mapping[str, Any]) -> Iterator[Problem]:
    """Only stamped rows can be archived."""
    if form.archive_after_seconds is not None and form.settle is not Settling.STAMP:
        yield "archive_after_seconds", "rows that are deleted cannot be archived; use 'settle: stamp'"


def can_sweep(form: "RelayForm", _: Mapping[str, Any]) -> Iterator[Problem]:
    """With immediate dispatch, dispatcher and relay both send rows: settings that need a single sender are refused."""
    if form.dispatch is not Dispatch.IMMEDIATE:
        return
    if form.shape is not Shape.THRESHER:
        yield "dispatch", f"'immediate' needs our own table: shape {form.shape.value} has no column for a stamp"
    elif form.settle is not Settling.STAMP:
        yield "dispatch", "'immediate' needs 'settle: stamp': the stamp tells relay and dispatcher that a row was sent"
    if form.delivery is not Delivery.AT_LEAST_ONCE:
        why = "a dispatcher that dies after sending leaves its rows to the relay, which sends them again"
        yield "dispatch", f"'immediate' needs 'delivery: at-least-once': {why}"
    if form.poison is Poison.BLOCK_KEY:
        yield (
            "dispatch",
            "'immediate' is not possible with 'poison: block-key': a dispatcher sends rows behind a dead row",
        )
    if form.transform:
        yield "dispatch", "'immediate' is not possible with 'transform': a dispatcher sends rows as they are stored"
