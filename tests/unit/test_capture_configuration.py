"""A capture's configuration: topics become mappings, and every problem is reported by its key."""

import subprocess
import sys
from typing import Any

import pytest

from thresher.capture.adopting import decide
from thresher.capture.configuration import capture_configured
from thresher.capture.rows.guard import GuardColumns
from thresher.capture.store.offsets import StoredOffset
from thresher.config.problem import ConfigurationInvalid
from thresher.db import TableName
from thresher.kafka.partition_ends import PartitionEnds

GIVEN: dict[str, Any] = {
    "name": "shop",
    "data_source": "host=db dbname=shop",
    "kafka": {"bootstrap.servers": "kafka:9092"},
}


def configured(**topic: Any) -> Any:
    return capture_configured({**GIVEN, "topics": {"orders": topic}})


def problems(**given: Any) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        capture_configured({**GIVEN, **given})
    return str(caught.value)


def test_a_topic_goes_to_the_table_of_its_name() -> None:
    (mapping,) = configured(columns={"id": "$key", "total": "total"}).settings.mappings
    assert (mapping.table, mapping.key, mapping.guard) == (TableName(table="orders"), ("id",), GuardColumns())
    (other,) = configured(
        table="o", schema="s", key="a", columns=["a", "b"], guard={"offset": "at"}, decoder="m.n:f"
    ).settings.mappings  # fmt: skip
    assert (other.table, other.key, other.columns) == (TableName(table="o", schema="s"), ("a",), {"a": "a", "b": "b"})
    assert (other.guard.offset, other.guard.partition, other.decoder) == ("at", "thresher_partition", "m.n:f")
    (handled,) = configured(handler="m:f").settings.mappings
    assert (handled.table, handled.handler) == (None, "m:f")


def test_every_problem_of_a_topic_is_reported_by_key() -> None:
    told = problems(
        topics={
            "a": {"columns": {"x": "$nothing"}},
            "b": {"columns": ["x"]},
            "c": {"columns": {"x": "$key"}, "key": "y", "tabel": "t"},
            "d": {"handler": "f"},
            "e": {"handler": "m:f", "columns": ["x"]},
            "f": {},
            "g": 1,
            "h": {"columns": {"x": "$key", "thresher_offset": "y"}, "guard": {"offsets": "z"}},
            "i!": {"handler": "m:f"},
            "j": {"columns": {"x": 1}},
            "k": {"columns": ["x"], "key": 5},
            "l": {"columns": ["x"], "key": ["x", "x"]},
            "m": {"columns": {"x": "$key"}, "guard": {"offset": "o", "timestamp": "o"}},
        }
    )
    for line in (
        "topics.a.columns.x: '$nothing' is neither a field",
        "topics.b.key: it is missing",
        "topics.c.key: 'y' is none of the columns",
        "topics.c.tabel: there is no such key, did you mean 'table'?",
        "topics.d.handler: 'f' is not of the form package.module:function",
        "topics.e.columns: a handler does this itself",
        "topics.f.columns: the columns to write are needed",
        "topics.g: keys with their values are needed",
        "topics.h.guard.offsets: there is no such key",
        "topics.h.columns.thresher_offset: it is a column of the guard",
        "topics.i!: 1 to 249",
        "topics.j.columns.x: a field's name is needed, not 1",
        "topics.k.key: the name of a column is needed, or a list of different ones",
        "topics.l.key: the name of a column is needed, or a list of different ones",
        "topics.m.guard: three columns with different names are needed",
    ):
        assert line in told, told


def test_a_schema_before_the_table_is_refused_with_a_hint() -> None:
    told = problems(topics={"orders": {"table": "shop.orders", "columns": {"id": "$key"}}})
    assert "topics.orders.table: give table: 'orders' and schema: 'shop'" in told


def test_one_table_has_one_topic() -> None:
    columns = {"id": "$key"}
    told = problems(topics={"a": {"table": "t", "columns": columns}, "b": {"table": "t", "columns": columns}})
    assert 'topics.a.table: "t": another topic has it too' in told


def test_missing_keys_and_fixed_properties_are_reported() -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        capture_configured(
            {"consumer": {"group.id": "g", "isolation.level": "x"}, "lease_seconds": 1, "election": "none"}
        )
    told = str(caught.value)
    for key in (
        "name",
        "data_source",
        "topics",
        "kafka",
        "consumer.group.id",
        "consumer.isolation.level",
        "lease_seconds",
    ):
        assert f"{key}: " in told


def test_publishing_needs_no_spark() -> None:
    code = "import sys, thresher.capture.publishing; sys.exit(any(m in sys.modules for m in ('pyspark', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_adopting_changes_only_offsets_that_the_log_lacks() -> None:
    stored = {
        ("t", 0): StoredOffset("id", 5),
        ("t", 1): StoredOffset("id", 5),
        ("t", 2): StoredOffset("id", 5),
        ("t", 4): StoredOffset("id", 5),
        ("other", 3): StoredOffset("x", 1),
    }
    ends = {
        0: PartitionEnds(first=0, stable=5, high=5),
        1: PartitionEnds(first=7, stable=9, high=9),
        2: PartitionEnds(first=0, stable=3, high=3),
        3: PartitionEnds(first=2, stable=3, high=3),
    }
    changed = {each.place[1]: (each.before, each.now) for each in decide("t", "id", stored, ends)}
    assert changed == {1: (5, 7), 2: (5, 3), 3: (None, 2), 4: (5, None)}
    assert {each.now for each in decide("t", "new", stored, {0: ends[0]})} == {0, None}
    gone = {place: each for place, each in stored.items() if place != ("t", 0)}
    assert next(each.why for each in decide("t", "id", gone, ends)) == "its stored offset is gone"
    assert [each.now for each in decide("new", "id", stored, ends)] == [0, 7, 0, 2]
