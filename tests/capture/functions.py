"""A handler and a decoder, by import path."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Connection

from thresher.capture.record import CapturedRecord


def count_orders(connection: Connection[Any], records: Sequence[CapturedRecord]) -> None:
    """Add the total of each order to its row."""
    for record in records:
        total = json.loads(record.value or b"{}")["total"]
        connection.execute(
            "INSERT INTO orders (id, total) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE "
            "SET total = orders.total + EXCLUDED.total",
            [(record.key or b"").decode(), total],
        )


def comma_separated(record: CapturedRecord) -> Mapping[str, Any] | None:
    """Decode `total,note`; an empty value is a tombstone."""
    if not record.value:
        return None
    total, note = record.value.decode().split(",")
    return {"total": int(total), "note": note}
