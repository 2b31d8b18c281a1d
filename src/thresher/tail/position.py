"""The position of a change in Postgres' WAL, and the order of changes: that of their commits.

A change's own LSN is not enough, since the changes of concurrent transactions interleave in the WAL. Changes that one
COPY wrote may share an LSN: `place` counts from 0 among the changes of a transaction with the same LSN. A change has
the same position each time the WAL is read, whatever else the publication sends.

Ascending positions are packed as differences: four or five bytes for each ordinary insert. Leaving a position out never
makes the others longer.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from thresher.db.lsn import lsn_text


class Position(NamedTuple):
    """A change of a committed transaction. Positions compare in the order in which changes are published."""

    # LSN of the commit record.
    commit: int
    change: int
    place: int

    def __str__(self) -> str:
        return f"{lsn_text(self.commit)}:{lsn_text(self.change)}:{self.place}"


class PackedSize:
    """The size of a growing list of ascending positions, once packed."""

    def __init__(self) -> None:
        self._counted = self._size = 0

    def of(self, positions: Sequence[Position]) -> int:
        """Return the size. The list has only grown since the last call."""
        before = positions[self._counted - 1] if self._counted else _NONE
        for each in positions[self._counted :]:
            self._size += sum(max(1, (number.bit_length() + 6) // 7) for number in _steps(before, each))
            before = each
        self._counted = len(positions)
        return self._size


def packed(positions: Iterable[Position]) -> bytes:
    """Return ascending positions as bytes."""
    found, before = bytearray(), _NONE
    for each in positions:
        for number in _steps(before, each):
            left = number
            while left > _SEVEN_BITS:
                found.append(left & _SEVEN_BITS | _MORE)
                left >>= 7
            found.append(left)
        before = each
    return bytes(found)


def unpacked(data: bytes) -> list[Position]:
    """Return the positions. Raises `ValueError` if these are not the bytes of whole positions."""
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if not byte & _MORE:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 3:
        raise ValueError("the positions are cut short")
    found, commit, behind = [], 0, 0
    for further, turned, place in zip(*[iter(numbers)] * 3, strict=True):
        commit += further
        behind += turned // 2 if turned % 2 == 0 else -(turned + 1) // 2
        found.append(Position(commit, commit - behind, place))
    return found


# The low bits of a byte that belong to a number, and the bit that says that more follow.
_SEVEN_BITS, _MORE = 0x7F, 0x80
# What the first position is counted from.
_NONE = Position(0, 0, 0)


def _steps(before: Position, now: Position) -> tuple[int, int, int]:
    """Return the differences, none negative: the commit, how far the change is before it (signed), and the place."""
    behind = (now.commit - now.change) - (before.commit - before.change)
    return now.commit - before.commit, 2 * behind if behind >= 0 else -2 * behind - 1, now.place
