"""Headers of records from any writer."""

from typing import Any

import pytest

from thresher.kafka.record_headers import headers_of


class Read:
    """A message of the client with these headers, or with the client's error."""

    def __init__(self, headers: Any) -> None:
        self._headers = headers

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ()),
        ([], ()),
        ([("a", b"1"), ("a", None), ("b", "text")], (("a", b"1"), ("a", None), ("b", b"text"))),
        ({"a": b"1"}, (("a", b"1"),)),
        # With a name that is not UTF-8 the client returns none of the headers.
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), ()),
    ],
)
def test_headers_are_pairs_for_any_record(given: Any, expected: Any) -> None:
    message: Any = Read(given)
    assert headers_of(message) == expected
