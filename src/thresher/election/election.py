"""Makes the competitor that the settings ask for."""

import logging
from collections.abc import Mapping
from typing import Any

from thresher.db import TableName
from thresher.election.leadership import Leadership
from thresher.election.lease import Lease
from thresher.election.neli import Neli
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.election.unopposed import Unopposed


def competitor(
    settings: ElectionSettings,
    *,
    name: str,
    dsn: str,
    outbox: TableName,
    kafka: Mapping[str, Any],
    logger: logging.Logger | None = None,
) -> Leadership:
    """Return a competitor for the relay of that name, not started."""
    match settings.kind:
        case ElectionKind.NELI:
            return Neli(
                topic=settings.leader_topic or f"{name}.leader",
                group=settings.leader_group or name,
                kafka=kafka,
                settings=settings,
                logger=logger,
            )
        case ElectionKind.LEASE:
            return Lease(dsn=dsn, outbox=outbox, name=name, seconds=settings.lease_seconds, logger=logger)
        case ElectionKind.NONE:
            return Unopposed()
