"""Settings in code are validated like a file, with the same report; strings are accepted where they are clear."""

import pickle
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import ThresherError
from thresher.core.secrets import Secret, carried
from thresher.db import TableName
from thresher.delivery.rules import Poison
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest import Harvest, HarvestMisused, load, start_db_backend
from thresher.harvest.form import KEYS
from thresher.harvest.settings_check import CheckedSettings, check_settings
from thresher.outbox.shape import Shape
from thresher.relay.settings import Coordination, Delivery, Dispatch, Limits, Settings, Settling, TopicLocking
from thresher.service.form import ServiceForm
from thresher.service.service import State

LEAST: dict[str, Any] = {"name": "orders", "data_source": "host=db", "kafka": {"bootstrap.servers": "k:1"}}
# Values of every kind, for every setting.
ODD: tuple[Any, ...] = (
    None,
    "2",
    "x",
    "",
    2,
    -1,
    2.5,
    float("nan"),
    True,
    b"\xff",
    [],
    ["a", 5],
    {},
    {"a": {}},
    object(),
    len,
)
KINDS = {
    "name": str, "data_source": Secret, "outbox": TableName, "shape": Shape, "delivery": Delivery, "kafka": Mapping,
    "producer": Mapping, "shards": int, "settle": Settling, "dispatch": Dispatch, "poison": Poison, "transform": tuple,
    "limits": Limits, "coordination": Coordination, "topic_locking": TopicLocking,
    "producer_factory": str | None, "archive_after_seconds": float | None, "archive_to": str,
}  # fmt: skip


def checked_or_refused(settings: Settings, election: ElectionSettings | None = None) -> CheckedSettings | str:
    """Return the accepted settings, or the report of problems. Any other error fails the test."""
    try:
        return check_settings(settings, election)
    except ConfigurationInvalid as refusal:
        return str(refusal)


def problems(**given: Any) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        check_settings(Settings(**{**LEAST, **given}))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_strings_are_accepted_where_their_meaning_is_clear() -> None:
    told = Settings(
        **LEAST, outbox="parcels", schema="shop", shards="2", transform="m:f", delivery="at-least-once",  # type: ignore[arg-type]
        settle="stamp", limits={"batch_rows": "5"}, archive_after_seconds="9",  # type: ignore[arg-type]
    )  # fmt: skip
    checked = check_settings(told, "neli").settings
    assert checked == Settings(
        **LEAST, outbox=TableName(table="parcels", schema="shop"), shards=2, transform=("m:f",),
        delivery=Delivery.AT_LEAST_ONCE, settle=Settling.STAMP, limits=Limits(batch_rows=5), archive_after_seconds=9.0,
    )  # fmt: skip
    assert pickle.loads(carried(checked)) == checked  # noqa: S301 - of our own making


def test_a_program_and_a_file_have_the_same_report() -> None:
    wrong = {"shards": "many", "settle": "burn", "kafka": {"acks": 1}, "batch_rows": 0, "transform": "nonsense"}
    with pytest.raises(ConfigurationInvalid) as caught:
        load(None, {**LEAST, **wrong})
    assert problems(**wrong) == str(caught.value)
    assert str(caught.value).count("\n") >= 5


def test_a_schema_in_the_table_name_is_refused_with_advice() -> None:
    text = problems(outbox="shop.outbox")
    assert "outbox: give outbox='outbox', schema='shop', or TableName(table='shop.outbox')" in text
    assert text.count("outbox: ") == 1, "it is reported once, in a program's words"
    assert check_settings(Settings(**LEAST, outbox="outbox", schema="shop")).settings.outbox.schema == "shop"
    literally = TableName(table="shop.outbox")
    assert check_settings(Settings(**LEAST, outbox=literally)).settings.outbox == literally


def test_a_function_object_is_refused_in_favour_of_its_path() -> None:
    assert "such as 'builtins:len'" in problems(transform=[len])
    assert "such as 'module:function'" in problems(transform=lambda batch: batch)


def test_every_malformed_transform_is_reported() -> None:
    text = problems(transform=["nowhere", "m:f", 5, len])
    assert "transform: 'nowhere', 5 are not of the form package.module:function; a function is given" in text


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_of_a_wrong_type_is_in_the_report(name: str) -> None:
    for odd in ODD:
        match checked_or_refused(Settings(**{**LEAST, name: odd})):
            case str(report):
                assert name in report, odd
            case CheckedSettings(settings=settings):
                assert isinstance(getattr(settings, name), KINDS[name]), odd


@pytest.mark.parametrize("name", [*Limits.__slots__, *TopicLocking.__slots__])
def test_every_bound_of_a_wrong_type_is_in_the_report(name: str) -> None:
    for odd in ODD:
        match checked_or_refused(Settings(**{**LEAST, "coordination": "topic-lock", name: odd})):
            case str(report):
                assert name in report, odd
            case CheckedSettings(settings=settings):
                taken = settings.limits if name in Limits.__slots__ else settings.topic_locking
                assert type(getattr(taken, name)) is type(getattr(type(taken)(), name)), odd


@pytest.mark.parametrize("kind", ElectionKind)
@pytest.mark.parametrize("name", [each.name for each in fields(ElectionSettings) if each.name != "consumer_factory"])
def test_an_election_of_a_wrong_type_is_in_the_report(name: str, kind: ElectionKind) -> None:
    for odd in ODD:
        told = replace(ElectionSettings(kind=kind), **{name: odd})
        match checked_or_refused(Settings(**LEAST), told):
            case str(report):
                assert ("election" if name == "kind" else name) in report, odd
            case CheckedSettings(election=ElectionSettings() as taken):
                assert isinstance(taken.kind, ElectionKind), odd


def test_names_of_the_file_are_names_in_code() -> None:
    of_process = {*ServiceForm.model_fields, "election", "lease_seconds", "step_down_seconds", "back_off_seconds"}
    for key in [key for key in KEYS if key not in of_process]:
        Settings(**{**LEAST, key: None})
    with pytest.raises(ConfigurationInvalid, match="shard: there is no such key, did you mean 'shards'"):
        Settings(**LEAST, shard=2)


def test_a_misplaced_key_is_reported_with_its_place() -> None:
    elsewhere = {*KEYS, "bootstrap", "ds"} - {each.name for each in fields(Settings)} - {"schema"}
    elsewhere -= {*Limits.__slots__, *TopicLocking.__slots__}
    wrong: dict[str, Any] = dict.fromkeys(elsewhere, 1)
    with pytest.raises(ConfigurationInvalid) as caught:
        Settings(**LEAST, **wrong)
    text = str(caught.value)
    assert "no such key" not in text
    for part in (
        "lease_seconds: it belongs to ElectionSettings: Harvest(settings, election=ElectionSettings(lease_seconds=…))",
        "spark_master: it belongs to SparkOptions: Harvest(settings, spark=SparkOptions(master=…))",
        "election: it belongs to Harvest: Harvest(settings, election=…)",
        "status: it is of 'thresher run' alone",
        "bootstrap: it is a property of Kafka's clients: kafka={'bootstrap.servers': …}",
        "ds: in a program it is data_source=…",
    ):
        assert part in text


def test_missing_settings_are_in_the_report() -> None:
    harvest = Harvest(Settings())
    with pytest.raises(ConfigurationInvalid) as caught:
        harvest.start()
    for part in ("name: it is missing", "data_source: it is missing", "kafka: it is missing"):
        assert part in str(caught.value)


def test_a_list_of_brokers_is_refused_with_advice() -> None:
    text = problems(kafka={"bootstrap.servers": ["k:1", "k:2"]})
    assert "kafka: bootstrap.servers: one text is needed, with commas instead of a list" in text
    assert "missing" not in text


def test_old_names_are_accepted() -> None:
    old = Settings(name="n", dsn="host=db", kafka={}, settling=Settling.STAMP, transforms=("m:f",))
    new = Settings(name="n", data_source="host=db", kafka={}, settle=Settling.STAMP, transform=("m:f",))
    assert old == new
    assert (new.dsn, new.settling, new.transforms) == (new.data_source, new.settle, new.transform)
    changes: dict[str, Any] = {"dsn": "host=other", "batch_rows": 7, "schema": "shop"}
    changed = replace(new, **changes)
    assert (changed.data_source, changed.limits.batch_rows) == ("host=other", 7)
    assert changed.outbox == TableName(table="outbox", schema="shop")


def test_secrets_stay_out_of_the_report() -> None:
    text = problems(data_source="postgresql://u:hunter2@db:x/y", kafka={"sasl.password": "hunter2", "acks": "hunter2"})
    assert "hunter2" not in text
    assert "hunter2" not in repr(Settings(**{**LEAST, "data_source": "password=hunter2"}))


def test_functions_among_the_properties_stay_there() -> None:
    def token(_: str) -> tuple[str, float]:
        return "t", 0.0

    kafka = {"metadata.broker.list": "k:1", "oauth_cb": token}
    assert check_settings(Settings(**{**LEAST, "kafka": kafka})).settings.kafka == {
        "bootstrap.servers": "k:1",
        "oauth_cb": token,
    }


def test_no_relay_starts_with_invalid_settings() -> None:
    for wrong in ({"metrics_seconds": "often"}, {"step_down_seconds": 0}, {"election": "vote"}):
        harvest = Harvest(Settings(**LEAST), **wrong)
        with pytest.raises(ConfigurationInvalid, match=next(iter(wrong))):
            harvest.start()
        assert harvest.state is State.CREATED
    with pytest.raises(HarvestMisused, match="Settings"):
        Harvest(LEAST)  # type: ignore[arg-type]
    with pytest.raises(ThresherError, match="threads"):
        start_db_backend(Settings(**LEAST), threads="2")  # type: ignore[arg-type]


def test_the_tested_kinds_cover_all_settings() -> None:
    assert set(KINDS) == {each.name for each in fields(Settings)}
