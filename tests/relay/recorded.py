"""Progress records made by hand, for tests of settling."""

from datetime import UTC, datetime, timedelta

from thresher.delivery.fate import Fate
from thresher.relay.protocol.progress import Origin, Progress

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def recorded(*rows: tuple[int, datetime, Fate]) -> Progress:
    """Return a progress record of these rows: their ids, create times and fates."""
    return Progress(
        origin=Origin(outbox_id="", system_id="", incarnation="", term="", shard=0),
        number=1,
        ids=[id_ for id_, _, _ in rows],
        create_times=[(created - _EPOCH) // timedelta(microseconds=1) for _, created, _ in rows],
        fates=[fate for _, _, fate in rows],
    )
