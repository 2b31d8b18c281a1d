"""A relay's configuration: accepted settings, and the report of invalid ones."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tests.processes import environment
from thresher.cli.form_command import add_form_command
from thresher.config.flags import flags_of, keys_from
from thresher.config.kafka_properties import wrong_alone
from thresher.config.log_level import LogLevel
from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.delivery.rules import Poison
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.configuration import load
from thresher.harvest.form import KEYS, RelayForm
from thresher.harvest.form_rules import OF_LOCKING
from thresher.kafka.property import PROPERTIES
from thresher.kafka.transactional import GUARDED
from thresher.observe.logs import LogFormat
from thresher.outbox import Shape
from thresher.relay.settings import Coordination, Delivery, Settling, TopicLocking

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


def test_a_minimal_configuration_is_accepted() -> None:
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
        ({"producer": {"acks": "1"}}, "acks: exactly-once depends on"),
        ({"producer": {"transactional.id": "mine"}}, "transactional.id"),
        ({"kafka": {"bootstrap.servers": "k:1", "isolation.level": "read_uncommitted"}}, "isolation.level"),
        ({"shape": "goharvest", "settle": "stamp"}, "goharvest's table has no column for a dispatched time"),
        ({"shape": "deimos", "settle": "stamp"}, "Deimos' table has no column for a dispatched time"),
        ({"outbox": "x" * 59}, "59 bytes"),
        ({"outbox": "shop.outbox"}, "outbox: give outbox: 'outbox' and schema: 'shop'"),
        ({"status": "8640"}, "status: HOST:PORT is needed, or 'off', not '8640'"),
        ({"grace_seconds": -1}, "grace_seconds"),
    ],
)
def test_an_invalid_value_is_refused_with_key_and_reason(changes: dict[str, Any], why: str) -> None:
    assert why in problems(changes)


def test_a_dot_beside_a_schema_belongs_to_the_name() -> None:
    loaded = load(None, {**LEAST, "outbox": "a.b", "schema": "shop"})
    assert loaded.settings.outbox == TableName(table="a.b", schema="shop")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("place", ["kafka", "producer"])
@pytest.mark.parametrize("name", sorted(GUARDED | {"topic.acks", "topic.message.timeout.ms", "group.id"}))
def test_properties_of_a_guarantee_are_refused_under_both_deliveries(delivery: str, place: str, name: str) -> None:
    text = problems({"delivery": delivery, place: {"bootstrap.servers": "k:1", name: "1"}})
    assert f"{place}.{name}: {delivery} depends on the relay's value" in text


def test_every_election_parameter_has_a_key() -> None:
    known = {"kind": "election"}
    told = {known.get(field.name, field.name) for field in fields(ElectionSettings)}
    # Only a program can pass a function.
    assert told - {"consumer_factory"} <= set(KEYS)
    loaded = load(
        None,
        {
            **LEAST, "election": "neli", "leader_topic": "leaders", "leader_group": "group",
            "heartbeat_timeout_seconds": 8, "min_poll_seconds": 0.2,
        },
    )  # fmt: skip
    assert loaded.election == ElectionSettings(
        kind=ElectionKind.NELI, leader_topic="leaders", leader_group="group", heartbeat_timeout_seconds=8.0,
        min_poll_seconds=0.2, max_poll_seconds=4.0,
    )  # fmt: skip
    assert load(None, LEAST).election == ElectionSettings()


def test_a_key_of_another_election_is_a_contradiction() -> None:
    text = problems({"election": "lease", "leader_topic": "leaders", "max_poll_seconds": 1})
    assert "leader_topic: it means nothing with 'election: lease': leave it out, or elect by neli" in text
    assert "max_poll_seconds: it means nothing" in text
    assert "lease_seconds: it means nothing with 'election: none'" in problems({"election": "none", "lease_seconds": 2})
    text = problems({"election": "neli", "heartbeat_timeout_seconds": 1, "min_poll_seconds": 2})
    assert "max_poll_seconds: 0.5 is less than min_poll_seconds, 2" in text


def test_the_group_may_be_the_name() -> None:
    group = {**LEAST, "name": None, "leader_group": "billing"}
    assert load(None, group).settings.name == "billing"
    assert load(None, {**group, "name": "orders"}).settings.name == "orders"
    assert "leader_group: it cannot also be the relay's name" in problems({"name": None, "leader_group": "a b"})


def test_every_other_key_reaches_its_setting() -> None:
    loaded = load(
        None,
        {
            **LEAST, "delivery": "at-least-once", "in_flight_rows": 7, "mark_rows": 8, "back_off_seconds": 9,
            "metrics_seconds": 10, "log_format": "JSON", "log_level": "Warning",
        },
    )  # fmt: skip
    assert loaded.settings.delivery is Delivery.AT_LEAST_ONCE
    assert (loaded.settings.limits.in_flight_rows, loaded.settings.limits.mark_rows) == (7, 8)
    assert (loaded.policy.back_off_seconds, loaded.policy.back_off_most_seconds) == (9.0, 9.0)
    assert (loaded.metrics_seconds, loaded.log_format, loaded.log_level) == (10.0, LogFormat.JSON, LogLevel.WARNING)


def test_a_key_without_effect_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    load(None, {**LEAST, "in_flight_rows": 7})
    assert [record.message for record in caplog.records] == [
        "in_flight_rows is accepted without effect: delivery is exactly-once"
    ]


def test_a_missing_or_malformed_file_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in problems({}, tmp_path / "nowhere.yaml")
    path = tmp_path / "relay.yaml"
    for text, why in (
        ("name: [orders\nshards: 3", "relay.yaml, line 2"),
        ("- a list", "keys with values"),
        ("shards: 2\nname: a\nshards: 3", "line 3: not YAML: the key 'shards' is there twice"),
        ("a: [1", "not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a:\n\t- 1", r"not YAML: found character '\t' that cannot start any token"),
        ("kafka: {a: 1, a: 2}", "the key 'a' is there twice"),
        ("data_source: *hunter2", "line 1"),
        ("data_source: !hunter2 x", "line 1"),
        ("data_source: !hunter2!hunter2 x", "line 1"),
        ("name: 2026-99-99", "a value in it is malformed"),
        ("thresher: {shards: 3}", "thresher: it belongs beside 'harvest'"),
    ):
        path.write_text(text)
        assert why in problems({}, path)
    path.write_bytes(b"\xff")
    assert "UTF-8" in problems({}, path)


def test_yaml_booleans_are_accepted_for_off(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text("status: off\nlog_level: off\nschema:\n")
    loaded = load(path, LEAST)
    assert (loaded.status, loaded.log_level, loaded.settings.outbox.schema) == (None, LogLevel.OFF, None)


def test_every_key_is_a_variable() -> None:
    said = {
        "name": "orders", "data_source": "host=db", "outbox": "o", "schema": "s", "shape": "goharvest",
        "delivery": "at-least-once", "shards": "3", "settle": "delete", "poison": "halt", "batch_rows": "5",
        "batch_bytes": "5000", "batch_seconds": "1.5", "poll_seconds": "0.5", "grace_seconds": "6",
        "horizon_seconds": "70", "in_flight_rows": "8", "mark_rows": "9", "back_off_seconds": "1", "election": "neli",
        "leader_topic": "t", "leader_group": "g", "heartbeat_timeout_seconds": "20", "min_poll_seconds": "1",
        "max_poll_seconds": "2", "metrics_seconds": "4", "step_down_seconds": "60", "log_format": "json",
        "log_level": "debug", "status": "off", "spark_master": "local[2]", "spark_python": "python3",
        "archive_to": "/archive",
        "dispatch": "relay", "min_age_seconds": "7", "sweep_seconds": "2",
    }  # fmt: skip
    lists = {
        "transform": ["a:b", "c:d"],
        "spark_archives": ["x", "y"],
        "spark_py_files": ["p", "q"],
        "status_hosts": ["h", "i"],
    }
    properties = {"kafka": {"bootstrap.servers": "k:1"}, "producer": {"linger.ms": "5"}, "spark": {"spark.x": "1"}}
    said["coordination"] = "leader"
    assert {*said, *lists, *properties, "lease_seconds", "archive_after_seconds", *OF_LOCKING} == set(KEYS)
    environment = {f"THRESHER_{key.upper()}": value for key, value in said.items()}
    environment |= {f"THRESHER_{key.upper()}": " ".join(value) for key, value in lists.items()}
    for key, value in properties.items():
        environment[f"THRESHER_{key.upper()}"] = " ".join(f"{name}={text}" for name, text in value.items())
    shown = load(None, {}, environment).shown
    assert shown == load(None, {**said, **lists, **properties}).shown
    assert shown["shards"] == 3


LOCKS = {
    "name": "orders",
    "data_source": "host=db",
    "kafka": {"bootstrap.servers": "k:1"},
    "coordination": "topic-lock",
}


def test_every_key_of_topic_locks_is_a_variable(tmp_path: Path) -> None:
    environment = {
        "THRESHER_NAME": "orders", "THRESHER_DS": "host=db", "THRESHER_BOOTSTRAP": "k:1",
        "THRESHER_COORDINATION": "topic-lock", "THRESHER_LOCK_SECONDS": "9", "THRESHER_REST_SECONDS": "0.25",
        "THRESHER_SPLIT_TOPICS": "orders=4 users=2", "THRESHER_COMPACT_TOPICS": "users prices",
    }  # fmt: skip
    loaded = load(None, {}, environment)
    assert loaded.settings.coordination is Coordination.TOPIC_LOCK
    assert loaded.settings.topic_locking == TopicLocking(
        lock_seconds=9.0,
        rest_seconds=0.25,
        split_topics={"orders": 4, "users": 2},
        compact_topics=("users", "prices"),
    )
    path = tmp_path / "shown.yaml"
    path.write_text(yaml.safe_dump(dict(loaded.shown)))
    assert load(path, {}).settings == loaded.settings


def test_batches_of_topic_locks_default_to_a_thousand_rows() -> None:
    assert load(None, LOCKS).settings.limits.batch_rows == 1_000
    assert load(None, {**LOCKS, "batch_rows": 7}).settings.limits.batch_rows == 7


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"split_topics": {"orders": 0}}, "orders: 1 to 64 parts"),
        ({"split_topics": {"orders": "many"}}, "orders: 1 to 64 parts"),
        ({"split_topics": {"not a topic": 2}}, "cannot be a topic's name"),
        ({"compact_topics": ["not a topic"]}, "cannot be a topic's name"),
        ({"lock_seconds": 0}, "lock_seconds"),
        ({"delivery": "at-least-once"}, "delivery: topic-lock"),
        ({"transform": "a:b"}, "transform: topic-lock"),
        ({"election": "lease"}, "no election"),
        ({"lease_seconds": 3}, "no election"),
        ({"coordination": "leader", "lock_seconds": 3}, "has no effect with 'coordination: leader'"),
        ({"coordination": "both"}, "coordination"),
    ],
)
def test_settings_that_topic_locks_cannot_keep_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=re.escape(why)):
        load(None, {**LOCKS, **more})


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(
        "name: file\nshards: 3\nkafka: {bootstrap.servers: 'k:2,k:1', client.id: file, client.rack: file}\n"
    )
    environment = {
        "THRESHER_DS": "host=db", "THRESHER_SHARDS": "4", "THRESHER_NAME": "", "THRESHER_BOOTSTRAP": "k:2",
        "THRESHER_KAFKA_CLIENT_ID": "environment",
    }  # fmt: skip
    settings = load(path, {"shards": 5, "kafka": {"client.rack": "flag"}}, environment).settings
    assert (settings.name, settings.shards, settings.dsn) == ("file", 5, "host=db")
    assert settings.kafka == {"bootstrap.servers": "k:2", "client.id": "environment", "client.rack": "flag"}
    assert load(path, {}, environment).settings.shards == 4


def test_variables_are_read_in_any_case() -> None:
    environment = {
        "THRESHER_shards": "5", "THRESHER_Name": "orders", "THRESHER_ds": "host=db", "THRESHER_bootstrap": "k:2",
        "THRESHER_kafka_client_id": "lower",
    }  # fmt: skip
    loaded = load(None, {}, environment)
    assert loaded.settings.shards == 5
    assert loaded.settings.kafka == {"bootstrap.servers": "k:2", "client.id": "lower"}


def test_variables_that_contradict_each_other_are_a_problem(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host=db password=hunter2")
    environment = {
        "THRESHER_DS": "host=db", "THRESHER_DS_FILE": str(secret), "THRESHER_DATA_SOURCE": "host=db",
        "THRESHER_KAFKA": "sasl.password=hunter2 oops", "THRESHER_KAFKA_SASL_PASSWORD": "hunter2",
    }  # fmt: skip
    with pytest.raises(ConfigurationInvalid) as caught:
        load(None, LEAST, environment)
    text = str(caught.value)
    assert "THRESHER_DS_FILE: another variable sets data_source too" in text
    assert "THRESHER_KAFKA: property=value is needed" in text
    assert "THRESHER_KAFKA_SASL_PASSWORD: another variable sets kafka.sasl.password too" in text
    assert "hunter2" not in text


def test_a_variable_that_only_looks_like_ours_is_not_read() -> None:
    # Kubernetes sets this variable for a service named thresher-kafka.
    remarks: list[str] = []
    environment = {
        "THRESHER_KAFKA_SERVICE_HOST": "10.0.0.1", "THRESHER_KAFKA_PORT": "tcp://10.0.0.1:9092",
        "THRESHER_KAFKA_SASL_PASWORD": "hunter2", "THRESHER_SERVICE_HOST": "10.0.0.1",
    }  # fmt: skip
    assert load(None, LEAST, environment, warn=remarks.append).settings.kafka == LEAST["kafka"]
    assert len(remarks) == 3
    (near,) = [remark for remark in remarks if "THRESHER_KAFKA_SASL_PASWORD is not read" in remark]
    assert near.endswith("did you mean 'THRESHER_KAFKA_SASL_PASSWORD'?")


def test_a_misspelt_variable_is_reported_with_its_nearest_name() -> None:
    remarks: list[str] = []
    environment = {
        "THRESHER_SHARD": "3", "THRESHER_OUTBOXX": "o", "THRESHER_DS_FIEL": "/no", "THRESHER_MARKER_TOPIC": "queues'",
        # Kubernetes sets this variable for a service named thresher.
        **{f"THRESHER_{name}": "x" for name in ("PORT", "SERVICE_PORT", "SERVICE_HOST", "PORT_8640_TCP")},
        **{f"THRESHER_PORT_8640_TCP_{name}": "x" for name in ("ADDR", "PORT", "PROTO")},
    }  # fmt: skip
    assert load(None, LEAST, environment, warn=remarks.append).settings.shards == 2
    assert remarks == [
        "THRESHER_DS_FIEL is not read, did you mean 'THRESHER_DS_FILE'?",
        "THRESHER_OUTBOXX is not read, did you mean 'THRESHER_OUTBOX'?",
        "THRESHER_SHARD is not read, did you mean 'THRESHER_SHARDS'?",
    ]


def test_an_unknown_variable_without_a_near_name_is_reported() -> None:
    remarks: list[str] = []
    names = ("BROKERS", "BOOTSTRAP_SERVERS", "DB", "QUUX")
    load(None, LEAST, {f"THRESHER_{name}": "x" for name in names}, warn=remarks.append)
    assert remarks == [
        "THRESHER_BOOTSTRAP_SERVERS is not read here, did you mean 'THRESHER_BOOTSTRAP'?",
        "THRESHER_BROKERS is not read, did you mean 'THRESHER_BOOTSTRAP'?",
        "THRESHER_DB is not read, did you mean 'THRESHER_DS'?",
        "THRESHER_QUUX is not read; 'thresher run --help' and docs/configuration.md have the names",
    ]


def test_variables_of_queues_are_not_reported() -> None:
    remarks: list[str] = []
    both = {"THRESHER_BOOTSTRAP": "k:1", "THRESHER_BOOTSTRAP_SERVERS": "k:1"}
    load(None, LEAST, both, warn=remarks.append)
    assert remarks == []


def test_a_report_of_problems_names_misspelt_variables_too() -> None:
    given = {key: value for key, value in LEAST.items() if key != "name"}
    with pytest.raises(ConfigurationInvalid, match="name: it is missing") as caught:
        load(None, given, {"THRESHER_NAM": "orders"})
    assert "\n  THRESHER_NAM: it is not read, did you mean 'THRESHER_NAME'?" in str(caught.value)


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("host=db password=hunter2\n")
    (tmp_path / "password").write_text("hunter3\r\n")
    (tmp_path / "key").write_text(" hunter4 \n\n")
    path = tmp_path / "relay.yaml"
    path.write_text(
        f"name: orders\ndata_source: {{file: {tmp_path}/dsn}}\n"
        f"kafka: {{bootstrap.servers: 'k:1', sasl.password: {{file: {tmp_path}/password}}}}\n"
    )
    environment = {"THRESHER_PRODUCER_SSL_KEY_PASSWORD_FILE": f"{tmp_path}/key"}
    loaded = load(path, {}, environment)
    assert loaded.settings.dsn == "host=db password=hunter2"
    assert loaded.settings.kafka["sasl.password"] == "hunter3"
    assert loaded.settings.producer["ssl.key.password"] == " hunter4 \n", "one newline at the end is removed"
    assert loaded.shown["data_source"] == {"file": f"{tmp_path}/dsn"}
    assert "hunter" not in json.dumps(dict(loaded.shown))
    again = load(None, LEAST | {"data_source": None}, {"THRESHER_DS_FILE": f"{tmp_path}/dsn"})
    assert again.settings.dsn == loaded.settings.dsn


def test_a_file_that_holds_no_secret_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "odd").write_bytes(b"hunter2\xff")
    text = problems(
        {
            "data_source": {"file": f"{tmp_path}/nowhere"},
            "kafka": {
                "bootstrap.servers": "k:1", "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN",
                "sasl.username": "me", "sasl.password": {"file": f"{tmp_path}/empty"}, "no.such": "1",
            },
            "producer": {"ssl.key.password": {"file": f"{tmp_path}/odd"}, "client.id": {"file": ["x"]}},
        }
    )  # fmt: skip
    assert f"data_source: the file {tmp_path}/nowhere cannot be read: No such file or directory" in text
    assert f"kafka.sasl.password: the file {tmp_path}/empty is empty" in text
    assert f"producer.ssl.key.password: the file {tmp_path}/odd does not hold text in UTF-8" in text
    assert "producer.client.id: 'file' needs a path" in text
    assert "kafka.no.such: there is no such key" in text
    assert "must be set" not in text, "an unreadable setting is not reported as missing too"


def test_properties_are_single_values_that_exist() -> None:
    text = problems(
        {"kafka": {"sasl": {"password": "hunter2"}, "bootstrap.servers": None}, "producer": "hunter2", "spark": [1]}
    )
    assert "kafka: sasl, bootstrap.servers: a single value is needed" in text
    assert "producer: properties with their values are needed" in text
    text = problems({"kafka": {"bootstrap.servers": "k:port", "metadata.brokerlist": "x", "ssl.ca.location": "/no"}})
    assert "kafka.bootstrap.servers: HOST:PORT is needed" in text
    assert "kafka.metadata.brokerlist: there is no such key, did you mean 'metadata.broker.list'?" in text
    assert "kafka.ssl.ca.location: there is no file '/no'" in text


def test_servers_may_go_by_their_other_name() -> None:
    assert load(None, {**LEAST, "kafka": {"metadata.broker.list": "k:1"}}).settings.kafka == {
        "bootstrap.servers": "k:1"
    }
    both = {"metadata.broker.list": "k:1", "bootstrap.servers": "k:1"}
    assert "remove one of them" in problems({"kafka": both})


def test_every_suggested_property_exists() -> None:
    for name in PROPERTIES:
        assert "no such key" not in wrong_alone(name, "1")


def test_the_shown_configuration_loads_again(tmp_path: Path) -> None:
    given = {
        **LEAST, "data_source": "host=db dbname=shop", "election": "neli", "status": "off", "transform": "a:b",
        "kafka": {"bootstrap.servers": "k:1", "client.id": "me"}, "log_level": "off", "schema": "s",
    }  # fmt: skip
    loaded = load(None, given)
    path = tmp_path / "shown.yaml"
    path.write_text(yaml.safe_dump(dict(loaded.shown)))
    again = load(path, {}, warn=lambda _: None)
    assert (again.settings, again.election, again.policy, again.shown) == (
        replace(loaded.settings, data_source=again.settings.data_source), loaded.election, loaded.policy, loaded.shown,
    )  # fmt: skip


FLAGS = flags_of(RelayForm)


def test_every_key_is_a_flag() -> None:
    assert {flag.key for flag in FLAGS} == set(KEYS)
    named = {name: flag for flag in FLAGS for name in flag.names}
    assert len(named) == len(KEYS) + 2, "--bootstrap, and two names for the data source"
    for key in set(KEYS) - {"data_source"}:
        assert named[f"--{key.replace('_', '-')}"].variable == f"THRESHER_{key.upper()}"
    assert named["--ds"] is named["--data-source"]
    assert named["--ds"].variable == "THRESHER_DS"


def test_flags_and_file_give_the_same_configuration() -> None:
    given: dict[str, Any] = {}
    app = typer.Typer()
    # With a second command, as in the real application.
    app.command("other")(lambda: None)

    def command(*, flags: dict[str, Any]) -> None:
        given.update(flags)

    add_form_command(app, "run", command, lambda: RelayForm)
    arguments = [
        "--ds", "host=db", "--shards", "3", "--transform", "a:b", "--transform", "c:d", "--bootstrap", "k:1",
        "--kafka", "client.id=me", "--kafka", "bootstrap.servers=other:1", "--spark", "spark.x=a=b",
        "--batch-seconds", "1.5", "--shape", "goharvest",
    ]  # fmt: skip
    answer = CliRunner().invoke(app, ["run", *arguments], env={"THRESHER_NAME": "orders"})
    assert answer.exit_code == 0, answer.output
    assert {key: value for key, value in given.items() if value} == {
        "name": "orders", "data_source": "host=db", "shards": 3, "transform": ["a:b", "c:d"], "batch_seconds": 1.5,
        "kafka": {"bootstrap.servers": "k:1", "client.id": "me"}, "spark": {"spark.x": "a=b"}, "shape": "goharvest",
    }  # fmt: skip
    loaded = load(None, given)
    assert (loaded.settings.shards, loaded.settings.shape) == (3, Shape.GOHARVEST)


def test_a_property_flag_without_value_shows_no_secret() -> None:
    with pytest.raises(InvalidInput) as caught:
        keys_from(FLAGS, {"kafka": ["client.id=me", "hunter2", "=hunter2"]})
    assert "--kafka: key=value is expected" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_loading_a_configuration_imports_no_spark(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump({**LEAST, "spark_master": "local[2]"}))
    program = (
        "import sys\nfrom pathlib import Path\nfrom thresher.harvest import load\n"
        "loaded = load(Path(sys.argv[1]), {}, {'THRESHER_SHARDS': '3'})\n"
        "heavy = ('pyspark', 'py4j', 'thresher.spark.driver', 'thresher.spark.session.session')\n"
        "print(loaded.settings.shards, [name for name in heavy if name in sys.modules])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, path], env=environment(), capture_output=True, text=True, check=True,
        timeout=150,
    )  # fmt: skip
    assert answer.stdout == "3 []\n"


def test_the_help_shows_the_actual_defaults() -> None:
    fields = {info.alias or name: info.default for name, info in RelayForm.model_fields.items()}
    told = 0
    for flag in FLAGS:
        shown = re.search(r"\(default: ([\w.:-]+)\)$", flag.help)
        default = fields[flag.key]
        if default is not None and isinstance(default, str | int | float):
            assert shown is not None, flag.name
            assert shown[1] == (
                f"{default:g}" if isinstance(default, float) else getattr(default, "value", str(default))
            ), flag.name
            told += 1
    assert told > 20


WHERE = {
    "THRESHER_DS": "host=db",
    "THRESHER_DATA_SOURCE": "host=db",
    "THRESHER_BOOTSTRAP": "kafka:9092",
    "THRESHER_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
    "THRESHER_KAFKA": "metadata.broker.list=kafka:9092",
}


@pytest.mark.parametrize("variable", WHERE)
def test_a_named_database_or_broker_is_never_replaced(variable: str) -> None:
    with pytest.raises(ConfigurationInvalid):  # The other one is missing.
        load(None, {"name": "orders"}, {variable: WHERE[variable]}, otherwise=lambda: LEAST)


def test_default_servers_are_used_only_without_a_file(tmp_path: Path) -> None:
    alone = {"name": "orders", "kafka": {"client.id": "me"}}
    loaded = load(None, alone, otherwise=lambda: LEAST)
    assert loaded.settings.dsn == LEAST["data_source"]
    assert loaded.settings.kafka == {"bootstrap.servers": "kafka:9092", "client.id": "me"}
    path = tmp_path / "relay.yaml"
    path.write_text("name: orders\n")
    with pytest.raises(ConfigurationInvalid):
        load(path, {}, otherwise=lambda: LEAST)
