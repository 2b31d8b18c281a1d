from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from thresher.core.errors import InvalidInput
from thresher.outbox import Shape
from thresher.testing.history import Outcome
from thresher.testing.pump.plan import Load, Plan, loads
from thresher.testing.pump.writer import Tally
from thresher.testing.record import headers_digest, value_digest

MOMENT = datetime(2026, 5, 4, microsecond=999, tzinfo=UTC)


def plan(**fields: Any) -> Plan:
    return Plan(**{"dsn": "password=hunter2", "records": 100, "keys": 10, "run": "r", **fields})


def all_loads(planned: Plan) -> list[Load]:
    return [load for writer in range(planned.writers) for load in loads(planned, writer)]


def test_a_seed_decides_the_load() -> None:
    assert all_loads(plan(seed=1)) == all_loads(plan(seed=1))
    assert all_loads(plan(seed=1)) != all_loads(plan(seed=2))


@pytest.mark.parametrize(("records", "writers", "size"), [(100, 1, 20), (101, 3, 7), (5, 4, 20), (1, 4, 1)])
def test_every_record_is_generated_once(records: int, writers: int, size: int) -> None:
    planned = plan(records=records, writers=writers, transaction_rows=size)
    made = [(writer, row) for writer in range(writers) for load in loads(planned, writer) for row, _ in load.rows]
    assert len(made) == len(set(made)) == records
    assert all(len(load.messages) == len(load.rows) <= size for load in all_loads(planned))


def test_owned_keys_have_one_writer_shared_ones_several() -> None:
    def owners(planned: Plan) -> Counter[str | None]:
        pairs = {(w, key) for w in range(planned.writers) for load in loads(planned, w) for _, key in load.rows}
        return Counter(key for _, key in pairs)

    assert set(owners(plan(records=2000, writers=4, own_keys=True)).values()) == {1}
    assert max(owners(plan(records=2000, writers=4)).values()) == 4


def test_skew_makes_hot_keys() -> None:
    def hottest(skew: float) -> int:
        keys = Counter(key for load in all_loads(plan(records=5000, skew=skew)) for _, key in load.rows)
        return keys.most_common(1)[0][1]

    assert hottest(2.0) > 2 * hottest(0.0)


def test_the_share_of_rollbacks_is_kept() -> None:
    rolled_back = sum(load.roll_back for load in all_loads(plan(records=20_000, rollback_share=0.25)))
    assert 200 < rolled_back < 300
    assert not any(load.roll_back for load in all_loads(plan()))


@pytest.mark.parametrize("size", [0, 1, 8, 500])
def test_values_have_the_configured_size(size: int) -> None:
    assert {len(message.value or b"") for load in all_loads(plan(value_bytes=size)) for message in load.messages} == {
        size
    }


def test_blank_records_are_tombstones_with_an_identity() -> None:
    messages = [message for load in all_loads(plan(blank=True)) for message in load.messages]
    assert all(message.value is None for message in messages)
    assert len({tuple(message.headers) for message in messages}) == 100


def test_varied_records_use_every_column() -> None:
    load = [
        pair
        for load in all_loads(plan(records=2000, varied=0.25, started=MOMENT))
        for pair in zip(load.messages, load.rows, strict=True)
    ]
    assert all((message.key is None) == (key is None) for message, (_, key) in load)
    shares = {
        "key": sum(message.key is None for message, _ in load),
        "headers": sum(len(message.headers) > 1 for message, _ in load),
        "partition": sum(message.partition == 0 for message, _ in load),
        "timestamp": sum(message.timestamp is not None for message, _ in load),
    }
    assert all(400 < share < 600 for share in shares.values()), shares
    assert all(message.partition is None and message.key for load in all_loads(plan()) for message in load.messages)


def test_the_history_notes_the_content_of_messages() -> None:
    (load,) = all_loads(plan(records=1, varied=1.0, started=MOMENT))
    ((message,), (content,)) = load.messages, load.contents()
    assert isinstance(message.value, bytes)
    assert content.value == value_digest(message.value)
    assert content.headers == headers_digest([("kind", b"one"), ("kind", b"two"), ("nothing", None), ("empty", b"")])
    assert (content.topic, content.partition, content.timestamp) == ("pump", 0, 1_777_852_800_000)


def test_deimos_table_has_no_column_for_a_records_identity() -> None:
    with pytest.raises(InvalidInput, match="Deimos' table has no column for them"):
        plan(shape=Shape.DEIMOS)


def test_goharvests_table_has_no_columns_for_varied_records() -> None:
    with pytest.raises(InvalidInput, match="goharvest's table cannot hold a NULL key"):
        plan(varied=0.1, shape=Shape.GOHARVEST)


def test_all_problems_of_a_plan_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(records=0, keys=0, rollback_share=2, rate=0, varied=3)
    words = ("records = 0", "keys = 0", "rollback share = 2", "rate = 0", "varied share = 3")
    assert all(word in str(caught.value) for word in words)


def test_a_plan_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(plan(history=Path("h")))


def test_tallies_add_up() -> None:
    one = Tally().plus(Outcome.COMMITTED, 5, 10, 20).plus(Outcome.ROLLED_BACK, 3, 30, 40)
    two = Tally().plus(Outcome.UNKNOWN, 2, 5, 1_000_000_005)
    both = one.merge(two)
    assert (both.committed, both.rolled_back, both.unknown, both.rows, both.transactions) == (5, 3, 2, 10, 3)
    assert both.seconds == 1.0
    assert Tally().merge(Tally()).seconds == 0.0
