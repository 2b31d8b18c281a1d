"""A new leader takes over: in this order, so that whatever ran before neither goes on nor is forgotten.

1. The outbox is what it should be; the tables beside it are there.
2. The control row is this outbox's, on this database system; the progress topic is the one that it knows.
3. The term is written. From here on older leaders' shards end when they next look.
4. The database sessions of older terms are ended: a stopped one could hold row locks for ever.
5. Where the recorded layout differs from ours, every transactional id of the recorded one is fenced, and what it
   published is settled, before ours is written. Same layout: the shards recover themselves.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg

from thresher.core.errors import Superseded
from thresher.db import statement
from thresher.db.cursor import OwnCursor
from thresher.db.problem import DatabaseRefused
from thresher.delivery.problem import ForeignProgress
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.committed_tail import CommittedTail
from thresher.kafka.transactional import TransactionalProducer
from thresher.outbox.schema import check_schema
from thresher.relay.control import ControlRow, ControlTable, exists, incarnation, located
from thresher.relay.database import connect, explained
from thresher.relay.leader.progress_topic import KEPT, broker_explained, known_topic, progress_limit, require_kept
from thresher.relay.names import progress_topic, sessions, transactional_id
from thresher.relay.protocol.progress import decode, merged
from thresher.relay.settings import Mandate, Settings
from thresher.relay.settle import Settlement

logger = logging.getLogger(__name__)

# Its age is the broker's word: the clock of a relay may be wrong.
_TOPIC_CONFIG = {**KEPT, "message.timestamp.type": "LogAppendTime"}


def take_over(
    settings: Settings, *, term: str | None = None, wanted: Callable[[], bool] = lambda: True
) -> Mandate | None:
    """Become the leader, and return what the shards are to be told. Raises what keeps it from that.

    The term is one that nobody has had before. None if it is not wanted any more when it is about to displace whoever
    leads now.
    """
    term = term or str(uuid.uuid4())
    connection = connect(settings.dsn, f"{sessions(settings.name, term)}/d")
    with connection:
        settings = replace(settings, outbox=located(connection, settings.outbox))
        _prepare(connection, settings)
        control = ControlTable(connection, settings.outbox)
        row = _own_row(connection, control, settings, term)
        admin = Admin.of(settings.kafka)
        with broker_explained():
            admin.greet()
        _progress_topic(admin, settings, row)
        if not wanted():
            return None
        # A stopped one may hold the control row too, in the middle of a mark.
        _end_sessions(connection, settings, term)
        taken = control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed while this relay was starting")
        # What was read before the term may have changed since: only from here on it stays.
        row = taken
        topic = _progress_topic(admin, settings, row)
        _end_sessions(connection, settings, term)
        needed = max(settings.shards, row.shards)
        if topic.partitions < needed:
            with broker_explained():
                admin.widen_topic(progress_topic(settings.name), needed)
        if (row.mode, row.shards) != (settings.delivery, settings.shards):
            _settle_layout(connection, settings, row, max(needed, topic.partitions))
        laid_out = control.run(
            "lay_out",
            name=settings.name,
            term=term,
            mode=str(settings.delivery),
            shards=settings.shards,
            topic_id=topic.topic_id,
        )
        if not laid_out:
            raise Superseded("a newer relay of the same name has taken over while this one was starting")
        since = incarnation(connection, settings.outbox).since
        progress_limit(admin, settings)
    return Mandate(
        settings=settings,
        outbox_id=row.outbox_id,
        term=term,
        term_time=row.term_time,
        since=since,
        progress_topic_id=topic.topic_id,
    )


def _prepare(connection: psycopg.Connection[Any], settings: Settings) -> None:
    with explained():
        check = check_schema(connection, settings.outbox, settings.shape)
        if not check.usable:
            reasons = "; ".join(str(finding) for finding in check.findings if finding.severity == "breaks")
            raise DatabaseRefused(f"{settings.outbox} cannot serve as an outbox: {reasons}")
    ControlTable(connection, settings.outbox).create()
    with explained(), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('thresher_relay'))")
        if not exists(connection, settings.outbox.companion("_dead")):
            OwnCursor(connection).execute(statement(f"{settings.shape.prefix}_dead_create", settings.outbox))


def _own_row(connection: psycopg.Connection[Any], control: ControlTable, settings: Settings, term: str) -> ControlRow:
    system = incarnation(connection, settings.outbox).system_id
    with explained(), connection.transaction():
        # Two of different names that start together must not both find nobody.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('thresher_relay'))")
        if others := control.others(settings.name):
            raise ForeignProgress(
                f"{settings.outbox} is relayed under the name {others[0]!r}: two relays would send its rows twice. "
                f"Give this one that name; or, once that one has stopped for good, 'thresher adopt {settings.name} "
                f"--instead-of {others[0]}'"
            )
        control.run(
            "insert",
            name=settings.name,
            outbox=settings.outbox.quoted(),
            outbox_id=uuid.uuid4(),
            system_id=system,
            term=term,
            mode=str(settings.delivery),
            shards=settings.shards,
        )
    row = control.read(settings.name)
    if row is None:
        raise Superseded("the control row was removed while this relay was starting")
    if row.outbox != settings.outbox.quoted():
        raise ForeignProgress(
            f"the name {settings.name!r} is that of a relay of {row.outbox}: {settings.outbox} needs another name"
        )
    # Rows of earlier versions have the system alone.
    if row.system_id not in {system, system.partition("/")[0]}:
        raise ForeignProgress(
            f"the relay {settings.name!r} belongs to another database ({row.system_id}, this is {system}): a copy must "
            f"not publish under its name. If this database has replaced it: 'thresher adopt {settings.name}'"
        )
    return row


def _progress_topic(admin: Admin, settings: Settings, row: ControlRow) -> TopicFacts:
    """Return the progress topic, made if this relay never had one; another one under its name is refused."""
    name = progress_topic(settings.name)
    if row.progress_topic_id is None:
        with broker_explained():
            if admin.topic(name) is None:
                admin.create_topic(name, partitions=max(settings.shards, row.shards), config=_TOPIC_CONFIG)
    found = known_topic(admin, settings.name, row.progress_topic_id)
    require_kept(admin, settings.name)
    for partition in range(found.partitions):
        # Before anything is fenced: the rightful owner must not notice.
        with CommittedTail(name, partition, settings.kafka, fenced=False) as tail:
            last = tail.last()
        if last is not None and (owner := decode(last).origin.outbox_id) != row.outbox_id:
            raise ForeignProgress(
                f"the progress topic {name} belongs to another outbox ({owner}, this is {row.outbox_id}): two outboxes "
                "on one broker need different names"
            )
    return found


def _end_sessions(connection: psycopg.Connection[Any], settings: Settings, term: str) -> None:
    try:
        with explained():
            OwnCursor(connection).execute(
                statement("sessions_end"), [sessions(settings.name), sessions(settings.name, term)]
            )
    except DatabaseRefused as error:
        # They belong to another role: what they hold is freed when they have been idle for long enough.
        logger.warning("sessions of an older term were not ended: %s", error, extra={"relay": settings.name})


def _settle_layout(connection: psycopg.Connection[Any], settings: Settings, row: ControlRow, shards: int) -> None:
    """Fence every shard that any layout so far had, and settle what it published last."""
    logger.info(
        "the layout changes from %d shards (%s) to %d (%s)",
        row.shards,
        row.mode,
        settings.shards,
        settings.delivery,
        extra={"relay": settings.name, "shards": settings.shards, "mode": str(settings.delivery)},
    )
    settlement = Settlement(connection, settings.outbox, settings.shape, settings.settling)
    now = incarnation(connection, settings.outbox)
    for shard in range(shards):
        name = transactional_id(settings.name, shard)
        producer = TransactionalProducer(name, {**settings.kafka, **settings.producer})
        producer.init(progress_topic(settings.name))
        with CommittedTail(progress_topic(settings.name), shard, settings.kafka) as tail:
            last = tail.last()
            if last is None:
                continue
            record = decode(last)
            whole = record.origin.incarnation != now.since
            for each in merged(decode(data) for data in tail.whole()) if whole else [record]:
                if each.origin.outbox_id != row.outbox_id:
                    raise ForeignProgress("the progress topic holds records of another outbox")
                if settlement.execute(each) < len(each.ids):
                    settlement.require_gone(each, recovering=True)
        producer.discard()
