"""Arrays in Postgres' binary format are those that psycopg would send."""

from array import array

from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int8

from thresher.db.postgres.arrays import bigint_array
from thresher.db.postgres.settlement import since_2000

_BIGINT, _TIMESTAMPTZ = 20, 1184


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers(values: list[int]) -> None:
    transformer = Transformer()
    found = bigint_array(values)
    assert found == bigint_array(array("q", values))
    if values:
        given_numbers = [Int8(value) for value in values]
        assert found == transformer.get_dumper(given_numbers, PyFormat.BINARY).dump(given_numbers)
    assert bigint_array(values, timestamps=True)[8:12] == _TIMESTAMPTZ.to_bytes(4)
    assert found[8:12] == _BIGINT.to_bytes(4)


def test_the_given_list_is_not_changed() -> None:
    values = array("q", [1, 2])
    bigint_array(values)
    assert values.tolist() == [1, 2]


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_create_times_are_counted_from_2000(times: list[int]) -> None:
    assert since_2000(times).tolist() == [time - 946_684_800_000_000 for time in times]
