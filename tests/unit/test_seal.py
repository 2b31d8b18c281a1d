"""The seal of a progress record cannot be forged, and is valid in one partition only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.progress_topic.seal import HEADER, Seal

OURS = Seal(secret="s", topic="orders.progress", partition=3, since=7)
values = st.binary(min_size=1, max_size=100)


@given(key=st.binary(max_size=20), value=st.binary(max_size=100), since=st.integers(0, 2**63 - 1))
def test_a_seal_holds_and_names_where_seals_began(key: bytes, value: bytes, since: int) -> None:
    made = Seal(secret="s", topic="orders.progress", partition=3, since=since)
    assert OURS.since_of(key, value, made.headers(key, value)) == since
    assert OURS.since_of(key, value, [("made-by", b"the caller"), *made.headers(key, value)]) == since


@pytest.mark.parametrize(
    "other",
    [
        Seal(secret="t", topic="orders.progress", partition=3),
        Seal(secret="s", topic="other.progress", partition=3),
        Seal(secret="s", topic="orders.progress", partition=4),
    ],
)
def test_a_seal_holds_under_one_secret_and_in_one_partition(other: Seal) -> None:
    assert OURS.since_of(b"", b"value", other.headers(b"", b"value")) is None


@given(value=values, other=values, place=st.integers(0, 39), bit=st.integers(0, 7))
def test_a_changed_record_has_no_valid_seal(value: bytes, other: bytes, place: int, bit: int) -> None:
    ((name, code),) = OURS.headers(b"", value)
    assert code is not None
    assert (OURS.since_of(b"", other, [(name, code)]) is None) == (value != other)
    bent = bytearray(code)
    bent[place] ^= 1 << bit
    assert OURS.since_of(b"", value, [(name, bytes(bent))]) is None


@given(content=values, cut=st.integers(0, 100))
def test_no_part_of_a_key_counts_as_content(content: bytes, cut: int) -> None:
    key, value = content[:cut], content[cut:]
    headers = OURS.headers(key, value)
    for place in range(len(content) + 1):
        found = OURS.since_of(content[:place], content[place:], headers)
        assert (found is None) == (content[:place] != key)


@given(headers=st.lists(st.tuples(st.sampled_from([HEADER, "x"]), st.none() | st.binary(max_size=50))))
def test_arbitrary_headers_are_no_valid_seal(headers: list[tuple[str, bytes | None]]) -> None:
    assert OURS.since_of(b"", b"value", headers) is None


def test_the_secret_is_not_shown() -> None:
    assert "very-secret" not in repr(Seal(secret="very-secret", topic="t", partition=0))
