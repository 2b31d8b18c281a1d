"""A committed transaction of a tail is settled in a fixed order: first dead rows, then the slot."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.engine.only_shard import only_shard
from tests.unit.test_tail_progress import BAD, book, filled, row
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import AwaitSettled, Settle
from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.row import RowList
from thresher.delivery.shard.meter import Meter
from thresher.tail.shard.settling import TailSettling


def test_dead_rows_are_written_before_the_slot_is_confirmed() -> None:
    buffer, done = filled(3), list[Any]()
    with ExitStack() as resources:
        shard = only_shard(resources)
        settling = TailSettling(
            shard,
            buffer,
            ReadAhead(ReadAheadLimits(most_rows=10)),
            Meter(shard),
            CrashPoints(None, 0),
            set_aside=lambda dead, _: done.append([each.row[0] for each in dead]),
            adopt=lambda progress: progress.coverage,
            confirm=done.append,
        )
        record = book(buffer).record(1, RowList([row(1), row(2, BAD), row(3)]), 0)
        settling.handlers[Settle](Settle(record))
        assert buffer.rows == 0, "the changes are decided by the commit"
        assert settling.handlers[AwaitSettled](AwaitSettled(within_seconds=10))
    assert done == [[1], 31]


def test_a_slot_is_not_confirmed_before_dead_rows_are_written() -> None:
    buffer, confirmed = filled(1), list[int]()

    def refuse(*_: object) -> None:
        raise OSError("the database hung up")

    with ExitStack() as resources:
        shard = only_shard(resources)
        settling = TailSettling(
            shard,
            buffer,
            ReadAhead(ReadAheadLimits(most_rows=10)),
            Meter(shard),
            CrashPoints(None, 0),
            set_aside=refuse,
            adopt=lambda progress: progress.coverage,
            confirm=confirmed.append,
        )
        record = book(buffer).record(1, RowList([row(1, BAD)]), 0)
        settling.handlers[Settle](Settle(record))
        with pytest.raises(OSError, match="hung up"):
            settling.handlers[AwaitSettled](AwaitSettled(within_seconds=10))
    assert confirmed == []
