"""A dispatcher that is killed at any point loses nothing: the sweeper sends its rows, some of them a second time."""

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.dispatch_program import POINTS
from tests.faults.program import Program
from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.relay.settings import Delivery, Dispatch, Settling

ROWS = 40


@pytest.mark.usefixtures("spark")
def test_a_killed_dispatchers_rows_are_swept(stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path) -> None:
    place = Place(stack, dsn, topic_prefix)
    kafka = {"bootstrap.servers": stack.kafka.bootstrap}
    settings = {"dsn": dsn, "kafka": kafka, "topic": place.topic, "rows": ROWS}
    program = Program(module="tests.crash.dispatch_program", settings=settings)
    for died in [program.changed(die=point).start(tmp_path / "log") for point in POINTS]:
        assert died.wait(60) == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert place.pending() == ROWS * len(POINTS)
    with place.relaying(
        dispatch=Dispatch.IMMEDIATE,
        settling=Settling.STAMP,
        delivery=Delivery.AT_LEAST_ONCE,
        limits={"min_age_seconds": 0.1, "sweep_seconds": 0.1},
    ) as relaying:
        relaying.until(lambda: place.pending() == 0)
    # At the first point nothing was sent; at the other points, every row was.
    read = Counter(int(each.value() or b"") for each in place.read(ROWS * (2 * len(POINTS) - 1)))
    assert read == dict.fromkeys(range(ROWS), 2 * len(POINTS) - 1)
