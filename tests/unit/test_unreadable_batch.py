"""The end of a batch that cannot be read is found exactly: no record before or behind it is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.kafka.unreadable_batch import end_of_batch


@given(first=st.integers(0, 10**12), records=st.integers(1, 10**6))
def test_the_end_of_a_batch_is_found_in_few_fetches(first: int, records: int) -> None:
    fetched: list[int] = []

    def is_inside(offset: int) -> bool:
        fetched.append(offset)
        return first <= offset < first + records

    assert end_of_batch(first, is_inside) == first + records
    assert len(fetched) <= 2 * records.bit_length() + 1


def test_an_unanswered_fetch_is_an_error() -> None:
    def unanswered(_: int) -> bool:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        end_of_batch(5, unanswered)
