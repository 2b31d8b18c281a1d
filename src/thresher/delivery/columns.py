"""Turns Arrow columns into Python values, ten thousand at a time.

`to_pylist` is fast for bytes. Numbers, timestamps and strings with few distinct values are taken from their buffers at
once: converting them one by one would cost more than everything else that is done with a row.
"""

from array import array
from itertools import pairwise
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

_T = TypeVar("_T")


def integers(column: pa.Array) -> "array[int]":
    """Return the values of a column of 64-bit numbers or timestamps without NULLs."""
    values = array("q")
    values.frombytes(_view(column, "q", column.offset, len(column)).cast("B"))
    return values


def texts(column: pa.Array) -> list[str]:
    """Return the values of a string column without NULLs. Fast if there are few distinct values."""
    encoded = column.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return names * len(column)
    return list(map(names.__getitem__, _view(encoded.indices, "i", encoded.indices.offset, len(column))))


def lists(column: pa.Array, items: list[_T]) -> list[list[_T]]:
    """Return for each list of a column its part of `items`, which correspond to `column.flatten()`."""
    each, rest = divmod(len(items), max(1, len(column)))
    if each and not rest and pc.all(pc.equal(column.value_lengths(), each)).as_py():
        return list(map(list, zip(*[iter(items)] * each, strict=True)))
    offsets = _view(column, "i", column.offset, len(column) + 1).tolist()
    if first := offsets[0]:
        offsets = [each - first for each in offsets]
    return [items[start:end] for start, end in pairwise(offsets)]


def same_lengths(one: pa.Array, other: pa.Array) -> bool:
    """Whether the lists of two columns have the same lengths, row by row."""
    return bool(one.value_lengths().equals(other.value_lengths()))


def size(column: pa.Array) -> int:
    """Return the total bytes of a binary or string column's values, from its offsets alone."""
    if not len(column):
        return 0
    offsets = _view(column, "i", column.offset, len(column) + 1)
    return int(offsets[len(column)] - offsets[0])


def _view(column: pa.Array, code: Literal["i", "q"], offset: int, length: int) -> Any:
    buffer, size = column.buffers()[1], array(code).itemsize
    # A buffer may be longer than its values.
    part = memoryview(buffer if buffer is not None else b"")[size * offset : size * (offset + length)]
    return part.cast(code)
