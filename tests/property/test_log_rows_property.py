"""A row of the WAL is read alike for any order of the table's columns: the fast path agrees with the general one."""

import struct
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.tail import wire
from thresher.core.errors import ThresherError
from thresher.db.names import TableName
from thresher.tail.log_reader import LogReader
from thresher.tail.log_source import TableSource

moments = st.integers(-(2**63), 2**63 - 1)
contents = st.none() | st.binary(max_size=40)
rows = st.fixed_dictionaries(
    {
        "id_": st.integers(-(2**63), 2**63 - 1),
        "created": st.integers(0, 10**15) | moments,
        "topic": st.text(max_size=8).map(str.encode),
        "key": contents,
        "value": contents,
        "names": st.lists(st.text(max_size=3).map(str.encode), max_size=3),
        "contents": st.lists(contents, max_size=3),
        "partition": st.none() | st.integers(-(2**31), 2**31 - 1),
        "timestamp": st.none() | moments,
        "sent": st.none() | moments,
    }
)
# A two-dimensional empty array, which no server sends.
EMPTY = struct.pack(">iiI", 2, 0, 25) + bytes(24)
# A replacement for one column: NULL, or that array.
odd = st.none() | st.tuples(st.integers(0, len(wire.COLUMNS) - 1), st.none() | st.just(EMPTY))


def read(columns: dict[str, int], values: dict[str, bytes | None], cut: int) -> Any:
    reader = LogReader(TableSource(table=TableName(table="outbox", schema="app")))
    frame = wire.data(wire.insert(7, [values[name] for name in columns]), 20)
    try:
        reader.feed(wire.data(wire.relation(7, "app", "outbox", columns), 0))
        reader.feed(wire.data(wire.begin(90), 10))
        reader.feed(frame[: len(frame) - cut])
    except ThresherError as error:
        return type(error)
    chunk = reader.take()
    return None if chunk is None else chunk.rows


PLAIN: dict[str, Any] = {
    "id_": 0, "created": 0, "topic": b"", "key": None, "value": None, "names": [], "contents": [], "partition": None,
    "timestamp": None, "sent": None,
}  # fmt: skip


@example(PLAIN, (5, EMPTY), 0)
@given(rows, odd, st.sampled_from([0, 0, 0, 1, 5]))
def test_a_row_is_the_same_in_any_order_of_columns(drawn: dict[str, Any], changed: Any, cut: int) -> None:
    values = dict(zip(wire.COLUMNS, wire.outbox_row(**drawn), strict=True))
    if changed is not None:
        values[list(wire.COLUMNS)[changed[0]]] = changed[1]
    backwards = dict(reversed(wire.COLUMNS.items()))
    found, other = (read(columns, values, cut) for columns in (wire.COLUMNS, backwards))
    # A truncated frame may fail in another column, with another error.
    assert found == other or (cut and isinstance(found, type) and isinstance(other, type))


@given(rows)
def test_ordinary_rows_are_read(drawn: dict[str, Any]) -> None:
    plain = {**drawn, "created": 0, "partition": None, "timestamp": None, "sent": None}
    values = dict(zip(wire.COLUMNS, wire.outbox_row(**plain), strict=True))
    ((id_, _, topic, key, value, names, headers, *rest),) = read(wire.COLUMNS, values, 0)
    assert (id_, topic.encode(), key, value) == (drawn["id_"], drawn["topic"], drawn["key"], drawn["value"])
    assert [name.encode() for name in names] == drawn["names"]
    assert list(headers) == drawn["contents"]
    assert rest == [None, None, None]
