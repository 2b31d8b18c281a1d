"""Creates the competitor that the settings ask for."""

import logging
from collections.abc import Mapping
from typing import Any

from thresher.core.secrets import SecretText
from thresher.election.leadership import Leadership
from thresher.election.neli import Neli
from thresher.election.problem import ElectionMisused
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.election.unopposed import Unopposed


def competitor(
    settings: ElectionSettings,
    *,
    name: str,
    kafka: Mapping[str, Any],
    dsn: SecretText | None = None,
    schema: str | None = None,
    beside: str | None = None,
    logger: logging.Logger | None = None,
) -> Leadership:
    """Return a competitor for the pipeline of that name, not started.

    A lease needs the database `dsn`. Its table is in `schema`; with `beside`, the name of an existing table, in the
    schema of that table; with neither, the search_path decides.
    """
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
            if dsn is None:
                raise ElectionMisused("a lease is a row in a database, and no database was given: pass dsn")
            # Imported here: the other elections work without a database driver.
            from thresher.election.lease import Lease  # noqa: PLC0415

            return Lease(
                dsn=dsn,
                schema=schema,
                beside=beside,
                name=name,
                seconds=settings.lease_seconds,
                grace_seconds=settings.grace_seconds,
                logger=logger,
            )
        case ElectionKind.NONE:
            return Unopposed()
