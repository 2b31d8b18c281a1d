"""How a progress record's fates change the table, on a real database."""

from datetime import UTC, datetime

import psycopg
import pytest

from tests.relay.recorded import recorded
from tests.relay.relaying import Place, taken_over
from thresher.db.postgres.settlement import PostgresSettlement
from thresher.delivery.fate import SENT
from thresher.devstack.stack import Stack
from thresher.relay.protocol.progress import Progress
from thresher.relay.settings import Settling
from thresher.relay.settle import Settlement

DAYS = {day: datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 6)}
# Rows of the table: the third reuses the id of an earlier row.
ROWS = {1: 1, 2: 2, 3: 4, 4: 1, 5: 5}


def record(*pairs: tuple[int, int]) -> Progress:
    """Return a progress record of sent rows, given as ids and days of create times."""
    return recorded(*((id_, DAYS[day], SENT) for id_, day in pairs))


@pytest.mark.parametrize("settling", Settling)
@pytest.mark.parametrize(
    ("pairs", "gone"),
    [
        pytest.param([(1, 1), (2, 2), (5, 5)], {1, 2, 5}, id="in order"),
        pytest.param([(5, 5), (1, 1), (2, 2)], {1, 2, 5}, id="in any order"),
        pytest.param([(1, 1), (3, 3), (4, 1)], {1, 4}, id="another came back under an id"),
        pytest.param([(3, 1), (1, 1), (3, 4), (3, 2), (2, 1)], {1, 3}, id="several had an id, one after another"),
        pytest.param([(3, 4), (3, 4), (3, 1)], {3}, id="one is named twice"),
        pytest.param([(1, 2), (2, 1), (4, 5)], set(), id="times of others"),
        pytest.param([], set(), id="none"),
    ],
)
def test_a_row_is_settled_by_id_and_create_time(
    stack: Stack, dsn: str, topic_prefix: str, settling: Settling, pairs: list[tuple[int, int]], gone: set[int]
) -> None:
    at = Place(stack, dsn, topic_prefix)
    settings = taken_over(at.settings()).settings
    for id_, day in ROWS.items():
        at.sql("INSERT INTO outbox (id, create_time, kafka_topic) VALUES (%s, %s, 't')", id_, DAYS[day])
    with psycopg.connect(at.dsn, autocommit=True) as ours:
        settlement = Settlement(PostgresSettlement(ours, settings.outbox, settings.shape, settling))
        assert settlement.execute(record(*pairs)) == len(gone)
        left = {row[0] for row in at.sql("SELECT id FROM outbox WHERE dispatched_time IS NULL")}
        assert left == ROWS.keys() - gone
        # A second settling changes nothing.
        assert settlement.execute(record(*pairs)) == 0
        settlement.require_gone(record(*pairs))
