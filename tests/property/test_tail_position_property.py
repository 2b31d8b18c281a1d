"""Packed positions: nothing is lost, and positions that leave or come change the size by no more than the bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.tail.position import PackedSize, Position, packed, unpacked

_LSN = st.integers(0, (1 << 55) - 1)
_POSITIONS = st.lists(st.builds(Position, _LSN, _LSN, st.integers(0, (1 << 28) - 1)), unique=True).map(sorted)


@given(_POSITIONS)
def test_packed_positions_are_read_back(positions: list[Position]) -> None:
    data = packed(positions)
    assert unpacked(data) == positions
    assert PackedSize().of(positions) == len(data) <= 24 * len(positions)


@given(_POSITIONS, st.data())
def test_positions_that_leave_make_the_rest_no_larger(positions: list[Position], data: st.DataObject) -> None:
    kept = [each for each in positions if data.draw(st.booleans())]
    assert len(packed(kept)) <= len(packed(positions))


@given(_POSITIONS, _POSITIONS)
def test_a_further_position_adds_thirty_bytes_at_most(positions: list[Position], more: list[Position]) -> None:
    together = sorted({*positions, *more})
    assert len(packed(together)) <= len(packed(positions)) + 30 * (len(together) - len(positions))


def test_ordinary_inserts_take_five_bytes_each() -> None:
    inserts = [Position(10**12 + 300 * n, 10**12 + 300 * n - 180 - n % 7, 0) for n in range(10_000)]
    assert len(packed(inserts)) < 5 * len(inserts)


@pytest.mark.parametrize("data", [b"\x80", b"\x01", b"\x01\x01", b"\x01\x01\x01\x80"])
def test_positions_that_are_cut_short_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        unpacked(data)
