"""The relay as a program, for runs with faults."""

import os
from typing import Any

import psycopg

from tests.faults.program import Program
from tests.relay.relaying import Place

LEFT = f"{__name__}:left"
DSN = "THRESHER_TEST_DSN"


def relay_program(*, name: str, dsn: str, bootstrap: str, **settings: Any) -> Program:
    """Return a relay of the table `outbox` in that database; see `tests/relay/program.py` for its settings."""
    given = {"name": name, "dsn": dsn, "bootstrap": bootstrap, **settings}
    return Program(module="tests.relay.program", settings=given, variables={DSN: dsn})


def relay_of(place: Place, **settings: Any) -> Program:
    """Return a relay of this place, with small batches."""
    bootstrap = place.stack.kafka.bootstrap
    return relay_program(
        name=place.settings().name, dsn=place.dsn, bootstrap=bootstrap, **{"batch_rows": 50, **settings}
    )


def left(rows: list[int]) -> int | None:
    """Return how many of these rows are still in the outbox: called in a worker."""
    with psycopg.connect(os.environ[DSN]) as connection:
        row = connection.execute("SELECT count(*) FROM outbox WHERE id = ANY (%s)", [rows]).fetchone()
    return row[0] if row else None
