"""The seal of a progress record cannot be forged, and is valid in one partition only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.progress_topic.seal import HEADER, Seal

OURS = Seal(secret="s", topic="orders.progress", partition=3)
values = st.binary(min_size=1, max_size=100)


@given(key=st.binary(max_size=20), value=st.binary(max_size=100))
def test_a_seal_holds_among_other_headers(key: bytes, value: bytes) -> None:
    made = Seal(secret="s", topic="orders.progress", partition=3)
    assert OURS.holds(key, value, made.headers(key, value))
    assert OURS.holds(key, value, [("made-by", b"the caller"), *made.headers(key, value), (HEADER, b"forged")])


def test_a_record_larger_than_any_of_ours_is_not_looked_at() -> None:
    huge = bytes(1_000_001)
    assert not OURS.holds(b"", huge, OURS.headers(b"", huge))


@pytest.mark.parametrize(
    "other",
    [
        Seal(secret="t", topic="orders.progress", partition=3),
        Seal(secret="s", topic="other.progress", partition=3),
        Seal(secret="s", topic="orders.progress", partition=4),
    ],
)
def test_a_seal_holds_under_one_secret_and_in_one_partition(other: Seal) -> None:
    assert not OURS.holds(b"", b"value", other.headers(b"", b"value"))


@given(value=values, other=values, place=st.integers(0, 31), bit=st.integers(0, 7))
def test_a_changed_record_has_no_valid_seal(value: bytes, other: bytes, place: int, bit: int) -> None:
    ((name, code),) = OURS.headers(b"", value)
    assert code is not None
    assert OURS.holds(b"", other, [(name, code)]) == (value == other)
    bent = bytearray(code)
    bent[place] ^= 1 << bit
    assert not OURS.holds(b"", value, [(name, bytes(bent))])


@given(content=values, cut=st.integers(0, 100))
def test_no_part_of_a_key_counts_as_content(content: bytes, cut: int) -> None:
    key, value = content[:cut], content[cut:]
    headers = OURS.headers(key, value)
    for place in range(len(content) + 1):
        assert OURS.holds(content[:place], content[place:], headers) == (content[:place] == key)


@given(headers=st.lists(st.tuples(st.sampled_from([HEADER, "x"]), st.none() | st.binary(max_size=50))))
def test_arbitrary_headers_are_no_valid_seal(headers: list[tuple[str, bytes | None]]) -> None:
    assert not OURS.holds(b"", b"value", headers)


def test_the_secret_is_not_shown() -> None:
    assert "very-secret" not in repr(Seal(secret="very-secret", topic="t", partition=0))
