"""Probes of a pipeline's servers: whether its database and its broker can be reached, without a query.

A standby runs them too. A session of the database is opened and closed, under a name that no take-over ends and that
holds no lock. The broker is asked which cluster it belongs to.
"""

from collections.abc import Callable, Mapping
from typing import Any

from thresher.db.postgres.sessions import connect
from thresher.delivery.progress_topic.topic import broker_explained
from thresher.kafka.admin import Admin

# Also the names of their metrics: thresher_database_up, thresher_broker_up.
SERVERS = ("database", "broker")


def server_probes(name: str, dsn: str, kafka: Mapping[str, Any]) -> dict[str, Callable[[], None]]:
    """Return a probe for each server. It raises a `PipelineProblem`, in time: both clients have time-outs."""

    def database() -> None:
        connect(dsn, f"thresher-probe/{name}"[:63]).close()

    def broker() -> None:
        with broker_explained():
            # The probe's error says it all: the client's own lines would repeat it.
            Admin.of({"log_level": 0, **kafka}).greet()

    return dict(zip(SERVERS, (database, broker), strict=True))
