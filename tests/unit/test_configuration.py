"""What a relay's configuration may be, and how it says what it may not be."""

from pathlib import Path
from typing import Any

import pytest

from thresher.outbox import Shape
from thresher.harvest.configuration import load
from thresher.relay.exactly_once import Poison
from thresher.relay.problem import ConfigurationInvalid
from thresher.relay.settings import Settling

LEAST: dict[str, Any] = {
    "name": "orders",
    "data_source": "postgresql://relay:hunter2@db/shop",
    "kafka": {"bootstrap.servers": "kafka:9092"},
}


def problems(changes: dict[str, Any], path: Path | None = None) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        load(path, {**LEAST, **changes})
    assert caught.value.exit_code == 2
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


def test_little_is_enough() -> None:
    loaded = load(None, LEAST)
    assert loaded.settings.shards == 2
    assert loaded.settings.settling is Settling.DELETE
    assert loaded.settings.poison is Poison.DEAD_LETTER
    assert loaded.status == ("127.0.0.1", 8640)
    assert loaded.status_by_default


def test_the_file_is_overridden_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(
        "name: orders\ndata_source: host=db\nshape: goharvest\nschema: app\nshards: 3\ntransform: a.b:c\n"
        "kafka: {bootstrap.servers: kafka:9092, client.id: me}\nstatus: 'off'\nbatch_seconds: 1.5\n"
    )
    loaded = load(path, {"shards": 5, "kafka": {"client.id": "you"}, "poison": "halt", "name": None})
    settings = loaded.settings
    assert (settings.shards, settings.poison, settings.shape) == (5, Poison.HALT, Shape.GOHARVEST)
    assert settings.kafka == {"bootstrap.servers": "kafka:9092", "client.id": "you"}
    assert (settings.outbox.schema, settings.transforms, settings.limits.batch_seconds) == ("app", ("a.b:c",), 1.5)
    assert loaded.status is None


def test_every_problem_is_named_in_one_message() -> None:
    text = problems(
        {"name": "no good", "shards": 65, "shard": 3, "settle": "burn", "batch_rows": "many", "transform": ["nowhere"]}
    )
    for part in ("name:", "shards:", "shard: there is no such key, did you mean 'shards'?", "settle:", "batch_rows:"):
        assert part in text
    assert "transform: 'nowhere' is not of the form package.module:function" in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": None}, "name: it is missing"),
        ({"data_source": "postgresql://relay:hunter2@db:port/shop"}, "data_source: host or port cannot be right"),
        ({"data_source": "what is this hunter2"}, "data_source: not a Postgres connection string"),
        ({"kafka": {"client.id": "me"}}, "'bootstrap.servers' is missing"),
        ({"kafka": {"bootstrap.servers": "k:1", "no.such.thing": "1"}}, "no.such.thing"),
        ({"producer": {"acks": "1"}}, "acks: exactly-once rests on"),
        ({"producer": {"transactional.id": "mine"}}, "transactional.id"),
        ({"kafka": {"bootstrap.servers": "k:1", "isolation.level": "read_uncommitted"}}, "isolation.level"),
        ({"shape": "goharvest", "settle": "stamp"}, "no column for a dispatched time"),
        ({"outbox": "x" * 59}, "59 bytes"),
        ({"status": "8640"}, "status: HOST:PORT is needed"),
        ({"grace_seconds": -1}, "grace_seconds"),
    ],
)
def test_what_cannot_work_is_refused_with_key_and_reason(changes: dict[str, Any], why: str) -> None:
    assert why in problems(changes)


def test_a_file_that_is_none_or_not_yaml_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in problems({}, tmp_path / "nowhere.yaml")
    path = tmp_path / "relay.yaml"
    path.write_text("name: [orders\nshards: 3")
    assert "relay.yaml, line 2" in problems({}, path)
    path.write_text("- a list")
    assert "keys with values" in problems({}, path)


def test_secrets_are_not_in_what_is_printed() -> None:
    settings = load(None, {**LEAST, "kafka": {"bootstrap.servers": "k:1", "sasl.password": "hunter2"}}).settings
    assert "hunter2" not in repr(settings)
