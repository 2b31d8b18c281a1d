"""Positions in Postgres' WAL (LSN): as numbers, which can be compared, and as the text that Postgres shows."""

from thresher.core.errors import InvalidInput, shorten


def lsn_text(lsn: int) -> str:
    """Return a position as Postgres writes it: two hexadecimal numbers."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return the number of a position that Postgres wrote. Raises `InvalidInput`."""
    high, slash, low = text.partition("/")
    try:
        parts = int(high, 16), int(low, 16)
    except ValueError:
        parts = (-1, -1)
    if not slash or not all(0 <= part < 2**32 for part in parts):
        raise InvalidInput(f"{shorten(text)} is no position in the WAL: a position looks like 0/16B3748")
    return parts[0] << 32 | parts[1]
