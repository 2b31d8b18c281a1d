"""Probes of a pipeline's servers: whether its database and its broker can be reached, without a query.

A standby runs them too. A database session is opened and closed; it holds no lock, and by its name no take-over ends
it. The broker is asked for the cluster's id.
"""

from collections.abc import Callable, Mapping
from typing import Any

from thresher.core.secrets import SecretText
from thresher.db.postgres.sessions import connect
from thresher.delivery.progress_topic.topic import broker_explained
from thresher.kafka.admin import Admin

# Also the names of their metrics: thresher_database_up, thresher_broker_up.
SERVERS = ("database", "broker")


def server_probes(name: str, dsn: SecretText, kafka: Mapping[str, Any]) -> dict[str, Callable[[], None]]:
    """Return a probe for each server. It raises `PipelineProblem` if the server fails or does not answer in time."""

    def database() -> None:
        connect(dsn, f"thresher-probe/{name}"[:63]).close()

    def broker() -> None:
        with broker_explained():
            # The client's own log lines would only repeat the probe's error.
            Admin.of({"log_level": 0, **kafka}).require_answer()

    return dict(zip(SERVERS, (database, broker), strict=True))
