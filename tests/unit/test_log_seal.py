"""What is in the WAL and was not written by the outbox's own function is never published."""

import pytest

from tests.tail import wire
from thresher.db.log_emitter import emitter_ddl
from thresher.db.names import InvalidName, TableName
from thresher.outbox.log_message import encode
from thresher.tail.log_reader import LogReader
from thresher.tail.log_seal import LogKeys, Refusal, Seals
from thresher.tail.log_source import LogSource

OUTBOX = TableName(table="orders")
PREFIX = "thresher:orders"
OTHER_KEY = b"o" * 64


def seals(keys: LogKeys | None = None) -> Seals:
    made = Seals(f"{PREFIX}\0".encode(), keys or LogKeys(wire.log_keys))
    made.begin(wire.XID)
    return made


def test_a_message_of_the_outboxs_function_is_opened() -> None:
    made = seals()
    assert made.opened(wire.sealed(b"one", PREFIX, 100), 110) == b"one"
    assert made.opened(wire.sealed(b"two", PREFIX, 110), 140) == b"two"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", Refusal.NO_SEAL),
        (encode(("t", b"k", b"v", (), (), None, None)), Refusal.NO_SEAL),
        (wire.sealed(b"", PREFIX, 100)[:-1], Refusal.NO_SEAL),
        (wire.sealed(b"x", PREFIX, 100, number=2), Refusal.NO_KEY),
        (wire.sealed(b"x", PREFIX, 100, key=OTHER_KEY), Refusal.FORGED),
        (wire.sealed(b"x", PREFIX, 100, xid=8), Refusal.FORGED),
        (wire.sealed(b"x", "thresher:others", 100), Refusal.FORGED),
        (wire.sealed(b"x", PREFIX, 100)[:-1] + b"y", Refusal.FORGED),
        (wire.sealed(b"x", PREFIX, 100) + b"y", Refusal.FORGED),
        (wire.sealed(b"x", PREFIX, 110), Refusal.COPY),
    ],
    ids=[
        "nothing", "no seal", "cut short", "unknown key", "another key", "another transaction", "another outbox",
        "changed", "longer", "later place",
    ],
)  # fmt: skip
def test_any_other_message_is_refused(message: bytes, why: Refusal) -> None:
    assert seals().opened(message, 110) is why


def test_a_copy_within_its_own_transaction_is_refused() -> None:
    made, first = seals(), wire.sealed(b"x", PREFIX, 100)
    assert made.opened(first, 101) == b"x"
    assert made.opened(first, 150) is Refusal.COPY
    assert made.opened(wire.sealed(b"y", PREFIX, 160), 161) == b"y"
    assert made.opened(first, 170) is Refusal.COPY


def test_a_copy_in_a_transaction_of_the_same_number_is_refused() -> None:
    """Transaction ids have 32 bits in the WAL, and come again after four billion transactions."""
    made, first = seals(), wire.sealed(b"x", PREFIX, 100)
    assert made.opened(first, 100 + 2**36 + 1) is Refusal.COPY
    made.begin(wire.XID)
    assert made.opened(first, 100 + 2**36) == b"x"


def test_a_new_key_is_read_when_a_message_names_it() -> None:
    known, asked = [(0, {1: wire.log_key()})], [0]

    def read() -> object:
        asked[0] += 1
        return known[0]

    made = seals(LogKeys(read))  # type: ignore[arg-type]
    assert made.opened(wire.sealed(b"1", PREFIX, 9), 10) == b"1"
    known[0] = (25, {1: wire.log_key(), 2: wire.log_key(OTHER_KEY)})
    assert made.opened(wire.sealed(b"2", PREFIX, 19, number=2, key=OTHER_KEY), 20) == b"2"
    assert made.opened(wire.sealed(b"3", PREFIX, 20), 21) == b"3"
    assert asked == [2]
    for position in range(22, 25):
        assert made.opened(wire.sealed(b"x", PREFIX, position, number=3), position) is Refusal.NO_KEY
    assert asked == [2], "messages from before the last reading of keys cannot be sealed with a newer key"
    known[0] = (90, known[0][1])
    assert made.opened(wire.sealed(b"x", PREFIX, 30, number=3), 30) is Refusal.NO_KEY
    assert asked == [3]


def test_a_key_that_was_made_anew_under_its_number_is_read() -> None:
    """A restored dump, or a table that was emptied, lets the numbers begin again."""
    known, asked = [(0, {1: wire.log_key(OTHER_KEY)})], [0]

    def read() -> object:
        asked[0] += 1
        return known[0]

    made = seals(LogKeys(read))  # type: ignore[arg-type]
    assert made.opened(wire.sealed(b"1", PREFIX, 9, key=OTHER_KEY), 10) == b"1"
    known[0] = (25, {1: wire.log_key()})
    assert made.opened(wire.sealed(b"2", PREFIX, 19), 20) == b"2"
    assert made.opened(wire.sealed(b"3", PREFIX, 20), 21) == b"3"
    assert asked == [2]
    for position in (22, 23):
        assert made.opened(wire.sealed(b"x", PREFIX, position, key=OTHER_KEY), position + 1) is Refusal.FORGED
    assert asked == [2], "the keys were read after these messages were written"


def test_refused_messages_are_counted_and_do_not_change_places() -> None:
    made = LogReader(LogSource(outbox=OUTBOX), LogKeys(wire.log_keys))
    made.feed(wire.data(wire.begin(900), 1))
    forged = wire.sealed(encode(("forged", None, None, (), (), None, None)), PREFIX, 39, key=OTHER_KEY)
    honest = wire.sealed(encode(("t", None, None, (), (), None, None)), PREFIX, 39)
    for message in (forged, honest, forged):
        made.feed(wire.data(wire.message(40, PREFIX, message), 40))
    chunk = made.take()
    assert chunk is not None
    assert [(row[2], position.place) for row, position in zip(chunk.rows, chunk.positions, strict=True)] == [("t", 0)]
    assert made.refused == 2
    assert made.last_refused is not None
    assert (made.last_refused.position, made.last_refused.xid, made.last_refused.why) == (40, 7, Refusal.FORGED)


def test_a_name_that_would_end_the_functions_text_is_refused() -> None:
    with pytest.raises(InvalidName, match="emit"):
        emitter_ddl(TableName(table="x$emit$; DROP TABLE y; --"), "public")
    assert "decode('74687265736865723a6f277c5c', 'hex')" in emitter_ddl(TableName(table="o'|\\"), "public")
