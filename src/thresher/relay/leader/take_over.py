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
from contextlib import closing
from dataclasses import replace

from thresher.core.errors import Superseded
from thresher.db.control import ControlRow, NewControlRow
from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseRefused
from thresher.delivery.problem import ForeignProgress
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.committed_tail import CommittedTail
from thresher.kafka.transactional import TransactionalProducer
from thresher.outbox.schema import check_relation
from thresher.relay.leader.progress_topic import KEPT, broker_explained, known_topic, progress_limit, require_kept
from thresher.relay.names import progress_topic, sessions, transactional_id
from thresher.relay.protocol.progress import decode, merged
from thresher.relay.settings import Mandate, Settings
from thresher.relay.settle import Settlement
from thresher.relay.store import store_of

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
    with closing(store_of(settings).session(f"{sessions(settings.name, term)}/d", locate=True)) as session:
        settings = replace(settings, outbox=session.outbox)
        _prepare(session, settings)
        row = _own_row(session, settings, term)
        admin = Admin.of(settings.kafka)
        with broker_explained():
            admin.greet()
        _progress_topic(admin, settings, row)
        if not wanted():
            return None
        # A stopped one may hold the control row too, in the middle of a mark.
        _end_sessions(session, settings, term)
        taken = session.control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed while this relay was starting")
        # What was read before the term may have changed since: only from here on it stays.
        row = taken
        topic = _progress_topic(admin, settings, row)
        _end_sessions(session, settings, term)
        needed = max(settings.shards, row.shards)
        if topic.partitions < needed:
            with broker_explained():
                admin.widen_topic(progress_topic(settings.name), needed)
        if (row.mode, row.shards) != (settings.delivery, settings.shards):
            _settle_layout(session, settings, row, max(needed, topic.partitions))
        laid_out = session.control.lay_out(
            settings.name,
            term=term,
            mode=str(settings.delivery),
            shards=settings.shards,
            progress_topic_id=topic.topic_id,
        )
        if not laid_out:
            raise Superseded("a newer relay of the same name has taken over while this one was starting")
        since = session.incarnation().since
        progress_limit(admin, settings)
    return Mandate(
        settings=settings,
        outbox_id=row.outbox_id,
        term=term,
        term_time=row.term_time,
        since=since,
        progress_topic_id=topic.topic_id,
    )


def _prepare(session: StoreSession, settings: Settings) -> None:
    check = check_relation(session.relation(), settings.outbox, settings.shape)
    if not check.usable:
        reasons = "; ".join(str(finding) for finding in check.findings if finding.severity == "breaks")
        raise DatabaseRefused(f"{settings.outbox} cannot serve as an outbox: {reasons}")
    session.create_tables()


def _own_row(session: StoreSession, settings: Settings, term: str) -> ControlRow:
    system = session.incarnation().system_id
    new = NewControlRow(
        name=settings.name,
        outbox=settings.outbox.quoted(),
        outbox_id=str(uuid.uuid4()),
        system_id=system,
        term=term,
        mode=str(settings.delivery),
        shards=settings.shards,
    )
    if others := session.control.insert(new):
        raise ForeignProgress(
            f"{settings.outbox} is relayed under the name {others[0]!r}: two relays would send its rows twice. "
            f"Give this one that name; or, once that one has stopped for good, 'thresher adopt {settings.name} "
            f"--instead-of {others[0]}'"
        )
    row = session.control.read(settings.name)
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


def _end_sessions(session: StoreSession, settings: Settings, term: str) -> None:
    try:
        session.end_sessions(starting=sessions(settings.name), but=sessions(settings.name, term))
    except DatabaseRefused as error:
        # They belong to another role: what they hold is freed when they have been idle for long enough.
        logger.warning("sessions of an older term were not ended: %s", error, extra={"relay": settings.name})


def _settle_layout(session: StoreSession, settings: Settings, row: ControlRow, shards: int) -> None:
    """Fence every shard that any layout so far had, and settle what it published last."""
    logger.info(
        "the layout changes from %d shards (%s) to %d (%s)",
        row.shards,
        row.mode,
        settings.shards,
        settings.delivery,
        extra={"relay": settings.name, "shards": settings.shards, "mode": str(settings.delivery)},
    )
    settlement = Settlement(session.settlement)
    now = session.incarnation()
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
