"""Probes of a relay's servers: whether its database and its broker can be reached, without a query.

A standby runs them too. A session of the database is opened and closed, under a name that no take-over ends and that
holds no lock. The broker is asked which cluster it belongs to.
"""

from collections.abc import Callable

from thresher.db.postgres.sessions import connect
from thresher.kafka.admin import Admin
from thresher.relay.leader.progress_topic import broker_explained
from thresher.relay.settings import Settings

# Also the names of their metrics: thresher_database_up, thresher_broker_up.
SERVERS = ("database", "broker")


def server_probes(settings: Settings) -> dict[str, Callable[[], None]]:
    """Return a probe for each server. It raises a `PipelineProblem`, in time: both clients have time-outs."""

    def database() -> None:
        connect(settings.dsn, f"thresher-probe/{settings.name}"[:63]).close()

    def broker() -> None:
        with broker_explained():
            # The probe's error says it all: the client's own lines would repeat it.
            Admin.of({"log_level": 0, **settings.kafka}).greet()

    return dict(zip(SERVERS, (database, broker), strict=True))
