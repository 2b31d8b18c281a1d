"""goharvest's own configuration files are accepted unchanged."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg import conninfo

from thresher.config.log_level import LogLevel
from thresher.config.problem import ConfigurationInvalid
from thresher.core.secrets import revealed
from thresher.db.postgres.lib_pq import from_lib_pq
from thresher.election.settings import ElectionKind
from thresher.harvest.configuration import Configuration, load
from thresher.harvest.goharvest_file import LIMITS
from thresher.outbox import Shape
from thresher.relay.settings import Delivery

# Copied from goharvest's documentation.
EXAMPLE = """
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9092
  producerKafkaConfig:
    compression.type: lz4
    delivery.timeout.ms: 10000
  leaderTopic: my-app-name
  leaderGroupID: my-app-name
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
  outboxTable: outbox
  limits:
    minPollInterval: 1s
    heartbeatTimeout: 5s
    maxInFlightRecords: 1000
    minMetricsInterval: 5s
    sendConcurrency: 4
    sendBuffer: 10
logging:
  level: Debug
"""

# Any address: the test connects to no broker.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBazCCARKgAwIBAgIIEAGvHDw7NGIwCgYIKoZIzj0EAwIwFDESMBAGA1UEAxMJ
bG9jYWxob3N0MB4XDTI2MTExNTE1MjYwMloXDTI2MTIxNTE1MjYwMlowFDESMBAG
A1UEAxMJbG9jYWxob3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE5+AtxNjn
8BkbHaZWfnZCGuw9KyLmxHhHnoGWGW3rMgVecZe78KjKYjaZX/5bRvKzHh6zQLwU
l4gR3r9YV8RkqqNOMEwwHQYDVR0OBBYEFBY8gaqG3hQwFd+HHAhJWIkuYbZ9MBoG
A1UdEQQTMBGHBH8AAAGCCWxvY2FsaG9zdDAPBgNVHRMBAf8EBTADAQH/MAoGCCqG
SM49BAMCA0cAMEQCIADBHWQEI3QQcvgtcV4rcP2ab6KURGjpFQz0X+sFkhRGAiB7
MSFyrLBwA8ZBrASLQPVBnBPt2AIUap+rE6SGCNqwwg==
-----END CERTIFICATE-----
"""


def take(path: Path, document: str | dict[str, Any], **overrides: Any) -> tuple[Configuration, list[str]]:
    path /= "reaper.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    remarks: list[str] = []
    return load(path, overrides, {}, warn=remarks.append), remarks


def refused(path: Path, document: str | dict[str, Any], **overrides: Any) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        take(path, document, **overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_goharvests_example_file_is_accepted_unchanged(tmp_path: Path) -> None:
    loaded, remarks = take(tmp_path, EXAMPLE)
    settings, election = loaded.settings, loaded.election
    assert (settings.name, settings.outbox.table, settings.shards) == ("my-app-name", "outbox", 1)
    assert (settings.shape, settings.delivery) == (Shape.GOHARVEST, Delivery.AT_LEAST_ONCE)
    assert settings.kafka == {"bootstrap.servers": "localhost:9092"}
    # The partitioner keeps every key in its partition.
    assert settings.producer == {"compression.type": "lz4", "partitioner": "consistent"}
    assert (election.kind, election.leader_topic, election.leader_group) == (
        ElectionKind.NELI, "my-app-name", "my-app-name",
    )  # fmt: skip
    assert (election.min_poll_seconds, election.heartbeat_timeout_seconds, election.max_poll_seconds) == (1.0, 5.0, 2.5)
    assert (loaded.metrics_seconds, loaded.log_level) == (5.0, LogLevel.DEBUG)
    assert settings.limits.in_flight_rows == 1000
    said = "\n".join(remarks)
    for key in ("producerKafkaConfig.delivery.timeout.ms", "limits.sendConcurrency", "limits.sendBuffer"):
        assert said.count(f"harvest.{key} is accepted without effect") == 1


def test_goharvests_secure_example_file_is_accepted_unchanged(tmp_path: Path) -> None:
    authority = tmp_path / "ca-cert.pem"
    authority.write_text(CERTIFICATE)
    secure = {
        "bootstrap.servers": "localhost:9094",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    document = {"harvest": {"baseKafkaConfig": secure, "leaderTopic": "__consumer_offsets", "leaderGroupID": "app"}}
    loaded, _ = take(tmp_path, document)
    assert loaded.settings.kafka == secure, "security properties are passed on unchanged"
    assert loaded.election.leader_topic == "__consumer_offsets"
    # goharvest's defaults.
    assert conninfo.conninfo_to_dict(revealed(loaded.settings.dsn))["host"] == "localhost"
    assert loaded.settings.outbox.table == "outbox"


def test_every_limit_has_its_effect_or_a_remark(tmp_path: Path) -> None:
    limits = {
        "ioErrorBackoff": "750ms", "pollDuration": "2ms", "minPollInterval": "50ms", "maxPollInterval": "1s",
        "heartbeatTimeout": "1m30s", "drainInterval": "1s", "queueTimeout": "20s", "markBackoff": "20ms",
        "maxInFlightRecords": 500, "sendConcurrency": 3, "sendBuffer": 0, "markQueryRecords": 50,
        "minMetricsInterval": "2s",
    }  # fmt: skip
    assert set(limits) == set(LIMITS)
    loaded, remarks = take(tmp_path, {"harvest": {"leaderGroupID": "app", "limits": limits}})
    election = loaded.election
    assert loaded.policy.back_off_seconds == 0.75
    assert election.min_poll_seconds == 0.05
    assert (election.max_poll_seconds, election.heartbeat_timeout_seconds) == (1.0, 90.0)
    assert (loaded.settings.limits.poll_seconds, loaded.settings.limits.in_flight_rows) == (0.02, 500)
    assert (loaded.settings.limits.mark_rows, loaded.metrics_seconds) == (50, 2.0)
    without = {name for name in LIMITS if any(f"limits.{name} is accepted without effect" in each for each in remarks)}
    assert without == {name for name, limit in LIMITS.items() if limit.key is None}
    assert without == {"pollDuration", "drainInterval", "queueTimeout", "sendConcurrency", "sendBuffer"}


def test_limits_beyond_our_range_are_clamped(tmp_path: Path) -> None:
    limits = {"ioErrorBackoff": "0s", "markBackoff": 0, "maxInFlightRecords": 1_000_000, "minMetricsInterval": "0"}
    loaded, remarks = take(tmp_path, {"harvest": {"leaderGroupID": "app", "limits": limits}})
    assert loaded.policy.back_off_seconds == loaded.settings.limits.poll_seconds == loaded.metrics_seconds == 0.001
    assert loaded.settings.limits.in_flight_rows == 40_000
    assert any("maxInFlightRecords is taken for 40000" in remark for remark in remarks)


def test_a_thresher_section_adds_settings_that_goharvest_lacks(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE)
    document["thresher"] = {
        "name": "orders", "delivery": "exactly-once", "election": "lease", "shards": 4, "kafka": {"client.id": "me"},
    }  # fmt: skip
    loaded, remarks = take(tmp_path, document)
    settings = loaded.settings
    assert (settings.name, settings.delivery, settings.shards) == ("orders", Delivery.EXACTLY_ONCE, 4)
    assert (settings.shape, loaded.election.kind) == (Shape.GOHARVEST, ElectionKind.LEASE)
    assert settings.kafka == {"bootstrap.servers": "localhost:9092", "client.id": "me"}
    said = "\n".join(remarks)
    assert "harvest.leaderTopic is accepted without effect: election is lease" in said
    assert "harvest.limits.maxInFlightRecords is accepted without effect: delivery is exactly-once" in said


def test_a_thresher_section_may_replace_goharvests_defaults(tmp_path: Path) -> None:
    ours = {"data_source": "host=db", "outbox": "Box", "kafka": {"bootstrap.servers": "k:1"}, "name": "orders"}
    loaded, _ = take(tmp_path, {"harvest": {}, "thresher": ours})
    settings = loaded.settings
    assert (settings.dsn, settings.outbox.table, settings.kafka) == ("host=db", "Box", {"bootstrap.servers": "k:1"})
    loaded, _ = take(tmp_path, {"harvest": None}, name="orders")
    assert loaded.settings.kafka == {"bootstrap.servers": "localhost:9092"}


def test_flags_override_a_file_of_goharvest(tmp_path: Path) -> None:
    loaded, _ = take(tmp_path, EXAMPLE, election="none", name="orders", shards=2)
    assert (loaded.settings.name, loaded.settings.shards) == ("orders", 2)
    assert loaded.election.kind is ElectionKind.NONE


def test_the_group_is_the_identity_not_the_name(tmp_path: Path) -> None:
    loaded, remarks = take(tmp_path, {"harvest": {"leaderGroupID": "app", "name": "host_17_1588000000"}})
    assert loaded.settings.name == "app"
    assert any("harvest.name is accepted without effect" in remark for remark in remarks)
    assert "harvest.leaderGroupID: it is missing" in refused(tmp_path, {"harvest": {"name": "host_17"}})
    assert "harvest.leaderGroupID: it cannot also be" in refused(tmp_path, {"harvest": {"leaderGroupID": "my app"}})


def test_all_problems_are_in_one_report(tmp_path: Path) -> None:
    text = refused(
        tmp_path,
        {
            "harvest": {
                "baseKafkaConfig": {"sasl.pasword": "hunter2", "enable.idempotence": False, "security.protocol": "tls"},
                "producerKafkaConfig": ["acks"],
                "leaderTopics": "x",
                "dataSource": "host=db password=hunter2 port=x",
                "outboxTable": "my table",
                "limits": {"minPolInterval": "1s", "maxPollInterval": "5 s", "queueTimeout": "0s", "sendBuffer": -1},
            },
            "loging": {},
            "logging": {"level": "Loud", "levl": 1},
            "thresher": {"shard": 2, "shards": 65},
            "shards": 2,
        },
    )
    for part in (
        "loging: there is no such key, did you mean 'logging'?",
        "shards: beside 'harvest', our own keys belong under 'thresher'",
        "harvest.baseKafkaConfig.sasl.pasword: there is no such key, did you mean 'sasl.password'?",
        "harvest.baseKafkaConfig.enable.idempotence: at-least-once depends on",
        "harvest.baseKafkaConfig.security.protocol: this is no value for configuration property",
        "harvest.producerKafkaConfig: properties with their values are needed",
        "harvest.leaderTopics: there is no such key, did you mean 'leaderTopic'?",
        "harvest.dataSource: host or port cannot be right",
        "harvest.outboxTable: 'my table' is no name of a table",
        "harvest.limits.minPolInterval: there is no such key, did you mean 'minPollInterval'?",
        "harvest.limits.maxPollInterval: a duration is needed",
        "harvest.limits.queueTimeout: 0s is less than 1ms",
        "harvest.limits.sendBuffer: -1 is less than 0",
        "logging.level: one of All, Trace, Debug, Info, Warn, Error, Off is needed",
        "logging.levl: there is no such key, did you mean 'level'?",
        "thresher.shard: there is no such key, did you mean 'shards'?",
        "thresher.shards: 1 to 64 is needed, not 65",
        "harvest.leaderGroupID: it is missing",
    ):
        assert part in text
    assert "hunter2" not in text


@pytest.mark.parametrize("place", ["baseKafkaConfig", "producerKafkaConfig"])
@pytest.mark.parametrize("name", ["enable.idempotence", "acks", "transactional.id", "topic.request.required.acks"])
def test_properties_that_the_guarantee_rests_on_are_refused(tmp_path: Path, place: str, name: str) -> None:
    text = refused(tmp_path, {"harvest": {"leaderGroupID": "app", place: {name: "all"}}})
    assert f"harvest.{place}.{name}: at-least-once depends on the relay's value" in text


def test_contradicting_settings_are_a_problem(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE)
    document["harvest"]["dataSource"] = "host=db"
    document["thresher"] = {
        "data_source": "host=other", "leader_group": "x", "kafka": {"bootstrap.servers": "k:1"}, "metrics_seconds": 1,
    }  # fmt: skip
    text = refused(tmp_path, document)
    assert "thresher.data_source: harvest.dataSource sets it too" in text
    assert "thresher.leader_group: harvest.leaderGroupID sets it too" in text
    assert "thresher.kafka.bootstrap.servers: harvest.baseKafkaConfig sets it too" in text
    assert "thresher.metrics_seconds: harvest.limits.minMetricsInterval sets it too" in text


@pytest.mark.parametrize(
    ("given", "schema", "table"),
    [
        ("outbox", None, "outbox"),
        ("OutBox", None, "outbox"),
        ("app.outbox", "app", "outbox"),
        ('"App"."Out""Box"', "App", 'Out"Box'),
    ],
)
def test_a_table_is_named_as_in_sql(tmp_path: Path, given: str, schema: str | None, table: str) -> None:
    loaded, _ = take(tmp_path, {"harvest": {"leaderGroupID": "app", "outboxTable": given}})
    assert (loaded.settings.outbox.schema, loaded.settings.outbox.table) == (schema, table)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("host=db user=x password='a b' sslmode=disable", None),
        ("postgres://u:p@db/shop?sslmode=disable", None),
        # libpq and lib/pq take the next word for the password here.
        ("host=db password= dbname=shop", {"host": "db", "password": "dbname=shop"}),
        ("host=db binary_parameters=yes", {"host": "db"}),
        (
            "host=db search_path='a b' statement_timeout=5000",
            {"host": "db", "options": r"-c search_path=a\ b -c statement_timeout=5000"},
        ),
    ],
)
def test_a_go_data_source_is_translated(given: str, parts: dict[str, str] | None) -> None:
    if parts is None:
        assert from_lib_pq(given) == given
    assert conninfo.conninfo_to_dict(from_lib_pq(given)) == (parts or conninfo.conninfo_to_dict(given))


@pytest.mark.parametrize(
    ("given", "environment", "mode"),
    [
        ("host=db dbname=shop password='a b'", {}, "require"),
        ("postgres://u:p@db/shop", {}, "require"),
        ({"file": "{file}"}, {}, "require"),
        ("host=db sslmode=verify-full", {}, "verify-full"),
        ("postgres://u:p@db/shop?sslmode=disable", {}, "disable"),
        # Both drivers read this variable.
        ("host=db", {"PGSSLMODE": "verify-full"}, None),
        # Our own variable has libpq's defaults.
        ("host=db dbname=shop", {"THRESHER_DS": "host=db dbname=shop user=relay"}, None),
    ],
)
def test_tls_is_required_unless_a_mode_is_given(
    tmp_path: Path, given: Any, environment: dict[str, str], mode: str | None
) -> None:
    (tmp_path / "dsn").write_text("host=db password=hunter2\n")
    if isinstance(given, dict):
        given = {"file": str(tmp_path / "dsn")}
    path = tmp_path / "reaper.yaml"
    path.write_text(yaml.safe_dump({"harvest": {"leaderGroupID": "app", "dataSource": given}}))
    remarks: list[str] = []
    loaded = load(path, {}, environment, warn=remarks.append)
    found = conninfo.conninfo_to_dict(revealed(loaded.settings.data_source))
    assert (found.get("sslmode"), "hunter2" in str(loaded.shown)) == (mode, False)
    assert (found["host"], found.get("user")) == ("db", "relay" if "THRESHER_DS" in environment else found.get("user"))


@pytest.mark.parametrize("place", ["kafka", "producer"])
def test_an_explicit_partitioner_is_used(tmp_path: Path, place: str) -> None:
    path = tmp_path / "reaper.yaml"
    path.write_text(EXAMPLE)
    settings = load(path, {place: {"partitioner": "murmur2"}}, {}, warn=lambda _: None).settings
    assert {**settings.kafka, **settings.producer}["partitioner"] == "murmur2"
