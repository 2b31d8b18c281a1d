"""Asks the server how the log stands before it is read."""

from contextlib import closing

from thresher.db.postgres.replication.connection import ReplicationConnection
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.tail.log_stand import LogStand
from thresher.tail.settings import TailSettings
from thresher.tail.slot import require_readable


def stand_of(slots: PostgresSlots, settings: TailSettings, application: str) -> LogStand:
    """Return how the log stands. Raises `LogUnreadable`."""
    # In this order: a publication that is changed after the first look is noticed.
    published = slots.published(settings.publication_name, settings.table)
    slot = require_readable(slots, settings.slot_name, settings.publication_name, settings.source)
    with closing(ReplicationConnection(settings.dsn, application)) as connection:
        now = connection.identify()
        left = [(each.timeline, each.end) for each in connection.timeline_ends(now.timeline)]
    return LogStand(
        system_id=now.system_id,
        timeline=now.timeline,
        end=now.position,
        left=left,
        confirmed=slot.confirmed or 0,
        published=published,
    )
