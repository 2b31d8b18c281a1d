"""With transforms, which may give all rows one key, pending rows are read in id order across stored keys."""

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from tests.integration.test_relay_head_order import KEYS, World
from tests.relay.reads import count_fetches
from tests.relay.relaying import Place, tables_created
from thresher.core.secrets import revealed
from thresher.db.postgres.sessions import incarnation
from thresher.devstack.stack import Stack
from thresher.relay.names import buckets_of
from thresher.relay.reading.pending_rows import PendingRows


class Merged(World):
    """A world without held topics and blocked keys, in which all rows are sent with one key."""

    def publish(self) -> None:
        if self.batches:
            ids = self.batches.popleft()
            self.place.sql("DELETE FROM outbox WHERE id = ANY (%s)", ids)
            self.sent += ids
            for id_ in ids:
                self.in_flight.pop(id_, None)

    def hold(self) -> None: ...

    def require_order(self) -> None:
        for row in self.rows.values():
            row.key = "merged"
        super().require_order()


@pytest.fixture
def place(stack: Stack, dsn: str) -> Place:
    return Place(stack, dsn, "none-", partitions=0)


@pytest.fixture
def head(place: Place) -> Iterator[PendingRows]:
    settings = tables_created(place.settings(shards=1, transforms=("tests.relay.transforms:merged",)))
    with psycopg.connect(revealed(settings.dsn)) as connection:
        since = incarnation(connection, settings.outbox).since
    with contextlib.closing(PendingRows(settings, "tests", buckets_of(0, 1), since)) as opened:
        yield opened


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 4))])
def test_rows_come_in_order_over_all_keys(
    place: Place, head: PendingRows, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = count_fetches(monkeypatch)
    world = Merged(place, head, [f"k{number}" for number in range(KEYS)], seed)
    world.play()
    assert len(world.sent) > 3_000
    # Otherwise the test has shown nothing.
    assert min(kinds["window"], kinds["head"]) > 2
