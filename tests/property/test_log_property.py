"""However a log is cut into frames, reads and parts: the same rows in the same order, and no end reported too early."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tail import wire
from thresher.db.names import TableName
from thresher.tail.chunk import Chunk
from thresher.tail.chunk_queue import ChunkQueue
from thresher.tail.log_reader import LogReader
from thresher.tail.log_source import TableSource
from thresher.tail.position import Position

OURS, OTHERS = 1, 2
# A transaction: for each log record, whether it is of our table, and its number of rows; then whether keep-alives
# come within the transaction, and after it.
records = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=5)
transactions = st.lists(st.tuples(records, st.booleans(), st.booleans()), max_size=6)


class Log:
    """A log as frames, with the position of each of our rows, and the number of rows up to each end."""

    def __init__(self, drawn: Any) -> None:
        self.frames: list[bytes] = [
            wire.data(wire.relation(OURS, "app", "outbox", wire.COLUMNS), 0),
            wire.data(wire.relation(OTHERS, "app", "other", {"a": 20}), 0),
        ]
        self.rows: list[tuple[Position, int]] = []
        # The number of our rows up to the end of each commit; and the same for idle positions.
        self.ends: dict[int, int] = {0: 0}
        self.idle: dict[int, int] = {}
        at = 100
        for drawn_records, inside, behind in drawn:
            first, commit = at, at + 10 * len(drawn_records)
            self.frames.append(wire.data(wire.begin(commit), at))
            for number, (ours, count) in enumerate(drawn_records):
                where = first + 10 * number
                for place in range(count):
                    if ours:
                        id_ = len(self.rows)
                        self.rows.append((Position(commit, where, place), id_))
                        self.frames.append(wire.data(wire.insert(OURS, wire.outbox_row(id_)), where))
                    else:
                        self.frames.append(wire.data(wire.insert(OTHERS, [b"x"]), where))
                if inside:
                    self.frames.append(wire.keep_alive(first))
            self.frames.append(wire.data(wire.commit(commit, commit + 5), commit + 5))
            self.ends[commit + 5] = len(self.rows)
            at = commit + 10
            if behind:
                self.frames.append(wire.keep_alive(at))
                self.idle[at] = len(self.rows)


@given(transactions, st.data())
def test_rows_come_once_in_order_for_any_read_size(drawn: Any, data: st.DataObject) -> None:
    log = Log(drawn)
    reader = LogReader(TableSource(table=TableName(table="outbox", schema="app")))
    queue = ChunkQueue(10**6, 10**9, lambda: None)
    found: list[tuple[Position, int]] = []
    ended = 0

    def read(rows: int) -> Chunk | None:
        nonlocal ended
        chunk = queue.take(rows, data.draw(st.sampled_from([1, 10**6])), 0.0)
        if chunk is not None:
            assert len(chunk.rows) == len(chunk.positions) == len(chunk.commit_times) <= rows
            found.extend(zip(chunk.positions, [row[0] for row in chunk.rows], strict=True))
            # An end never comes before all of its rows, and never goes back.
            assert log.ends[chunk.ended] <= len(found)
            assert chunk.ended >= ended
            ended = chunk.ended
            if chunk.idle_at is not None:
                assert log.idle[chunk.idle_at] <= len(found)
        return chunk

    for frame in log.frames:
        reader.feed(frame)
        if data.draw(st.booleans()) and (chunk := reader.take()) is not None:
            queue.put(chunk)
        if data.draw(st.integers(0, 4)) == 0:
            read(data.draw(st.integers(1, 5)))
    if (chunk := reader.take()) is not None:
        queue.put(chunk)
    while read(data.draw(st.integers(1, 5))) is not None:
        pass
    assert found == log.rows
    assert [position for position, _ in found] == sorted(position for position, _ in found)
    assert ended == max(log.ends)
