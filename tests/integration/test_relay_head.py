"""What a head hands over of rows that are larger than any record can be."""

import contextlib
from typing import Any

import psycopg
import pytest

from tests.relay.relaying import Place, taken_over
from thresher.devstack.stack import Stack
from thresher.outbox import Shape
from thresher.relay.control import incarnation
from thresher.relay.head import Head
from thresher.relay.lot import Few
from thresher.relay.names import buckets_of
from thresher.relay.settings import Settings

# The largest row is one of this size where a client's limit is no higher; these are larger.
BATCH_BYTES = 1_000_000
LARGE = "repeat('x', 3000000)"
SHARDS = 2


@pytest.fixture(params=[Shape.THRESHER, Shape.GOHARVEST], ids=str)
def place(request: pytest.FixtureRequest, stack: Stack, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix, shape=request.param)


def heads_of(settings: Settings) -> dict[int, dict[str, Any]]:
    """Return what the heads of all shards hand over, one row at a time, by id."""
    found: dict[int, dict[str, Any]] = {}
    with psycopg.connect(settings.dsn) as connection:
        since = incarnation(connection).since
    for shard in range(SHARDS):
        with contextlib.closing(Head(settings, "tests", buckets_of(shard, SHARDS), since)) as head:
            while (read := head.read(1, BATCH_BYTES, list(found), (), 0)) is not None:
                batch = read.batch() if isinstance(read, Few) else read
                found |= {row["id"]: row for row in batch.to_pylist()}
    return found


def test_keys_and_headers_too_large_for_any_record_stay_where_they_are(place: Place) -> None:
    # It makes the table for rows that were set aside, which the head looks at.
    settings = taken_over(place.settings(shards=SHARDS, limits={"batch_bytes": BATCH_BYTES})).settings
    if place.shape is Shape.GOHARVEST:
        # Somebody widened the column.
        place.sql("ALTER TABLE outbox ALTER COLUMN kafka_key TYPE text")
    kind = "bytea" if place.shape is Shape.THRESHER else "text"
    rows = [("'k'", "'{}'", "'{}'"), (LARGE, "'{}'", "'{}'"), ("'k'", "'{a}'", f"ARRAY[{LARGE}]")]
    for key, names, contents in [*rows, ("'k'", f"ARRAY[{LARGE}]", "'{x}'")]:
        place.sql(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
            f" VALUES (now(), 't', {key}::{kind}, {names}::text[], {contents}::{kind}[])"
        )
    found = heads_of(settings)
    parts = [(row["flaw"], row["key"], row["header_keys"], row["header_values"]) for _, row in sorted(found.items())]
    assert parts == [
        (None, b"k", [], []),
        ("too-large", None, [], []),
        ("too-large", b"k", [], []),
        ("too-large", b"k", [], []),
    ]
