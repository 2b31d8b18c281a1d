"""Decisions of a dispatcher, the relays that may run beside it, and their polling interval."""

from typing import Any

import pytest
from confluent_kafka import KafkaError

from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.delivery.reading.prefetch import every, pause
from thresher.harvest.configuration import load
from thresher.harvest.settings_check import check_settings
from thresher.outbox import Limits, Message, Outbox, Shape
from thresher.publisher import Cleared, Dispatcher
from thresher.publisher.dispatch_table import LockedRow
from thresher.publisher.dispatcher import judged
from thresher.relay.settings import Delivery, Dispatch, Settings, Settling

GIVEN = {
    "name": "orders", "data_source": "host=db", "kafka": {"bootstrap.servers": "k:1"}, "dispatch": "immediate",
    "settle": "stamp", "delivery": "at-least-once",
}  # fmt: skip
KAFKA = {"bootstrap.servers": "127.0.0.1:1"}


def rows(*keys: str | None) -> list[LockedRow]:
    return [LockedRow(id=n, message=Message(topic="t", key=key)) for n, key in enumerate(keys, 1)]


def test_acked_rows_are_stamped_and_others_are_classified() -> None:
    errors = {
        1: None,
        2: KafkaError(KafkaError.MSG_SIZE_TOO_LARGE),
        3: KafkaError(KafkaError._MSG_TIMED_OUT),
        4: KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        5: KafkaError(KafkaError._FATAL),
    }
    found = judged([*rows("a", "b", "c", "d", None), LockedRow(id=6, message=None)], errors)
    assert (found.acked, found.not_sent, found.unknown) == ([1], 3, 2)
    assert {("t", "b"), ("t", "c"), ("t", "d")} <= found.left
    assert ("t", "a") not in found.left
    assert len(found.reasons) == 5


def test_a_held_row_is_not_sent() -> None:
    found = judged(rows("a", "b"), {2: None})
    assert (found.acked, found.not_sent, found.unknown) == ([2], 1, 0)
    assert "is left to the sweeper" in found.reasons[0]


def test_outcomes_add_up() -> None:
    total = Cleared(sent=1, skipped=2, not_sent=3, unknown=4, reasons=("a", "b")) + Cleared(sent=1, reasons=("b", "c"))
    assert total == Cleared(sent=2, skipped=2, not_sent=3, unknown=4, reasons=("a", "b", "c"))
    assert total.left == 7


@pytest.mark.parametrize(
    "wrong", [{"outbox": Outbox(shape=Shape.GOHARVEST)}, {"timeout_seconds": 0.0}, {"connections": 0}]
)
def test_a_dispatcher_that_cannot_work_is_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Dispatcher(lambda: pytest.fail("nothing is connected"), KAFKA, **wrong)


@pytest.mark.parametrize("wrong", [{"no.such.property": 1}, {"compression.type": "none at all"}])
def test_wrong_properties_are_reported_before_any_message_is_stored(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="the producer's properties"):
        Dispatcher(lambda: pytest.fail("nothing is connected"), {**KAFKA, **wrong})


def test_a_silent_topic_is_reported_a_paused_one_skipped() -> None:
    errors = {1: KafkaError(KafkaError._MSG_TIMED_OUT), 2: KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)}
    assert judged(rows("a", "b"), errors).silent == {"t"}
    assert judged(rows("a", "b"), {2: errors[2]}).silent == set()
    assert judged(rows("a"), {}, {"t"}).reasons == ("t: its brokers did not answer a moment ago",)


def test_a_relays_mode_says_whether_it_sweeps() -> None:
    def mode(**changes: Any) -> str:
        return load(None, {**GIVEN, **changes}).settings.mode

    assert mode() == "immediate"
    assert mode(dispatch="relay") == "at-least-once"
    assert mode(dispatch="relay", delivery="exactly-once") == "exactly-once"
    assert mode(dispatch="relay", delivery="exactly-once", coordination="topic-lock") == "topic-lock"


@pytest.mark.parametrize("wrong", [0, -1, True, "7", 1.5])
def test_a_limit_of_outstanding_rows_is_a_positive_number(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="outstanding"):
        Limits(outstanding=wrong)
    assert Limits().outstanding is None


def test_a_sweeper_is_configured() -> None:
    settings = load(None, {**GIVEN, "min_age_seconds": 7, "sweep_seconds": 0.5}).settings
    assert settings.sweeps
    assert (settings.limits.min_age_seconds, settings.limits.sweep_seconds) == (7, 0.5)
    ordinary = load(None, {**GIVEN, "dispatch": None}).settings
    assert (ordinary.dispatch, ordinary.sweeps) == (Dispatch.RELAY, False)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        pytest.param({"delivery": "exactly-once"}, "needs 'delivery: at-least-once'", id="exactly once"),
        pytest.param({"delivery": None}, "needs 'delivery: at-least-once'", id="exactly once by default"),
        pytest.param({"settle": "delete"}, "needs 'settle: stamp'", id="deleting"),
        pytest.param({"shape": "goharvest", "settle": None}, "needs our own table", id="another shape"),
        pytest.param({"poison": "block-key"}, "is not possible with 'poison: block-key'", id="blocked keys"),
        pytest.param({"transform": ["a:b"]}, "is not possible with 'transform'", id="transforms"),
        pytest.param({"dispatch": "later"}, "dispatch", id="unknown"),
        pytest.param({"min_age_seconds": 0}, "min_age_seconds", id="no age"),
        pytest.param({"sweep_seconds": 0}, "sweep_seconds", id="no pause"),
    ],
)
def test_settings_that_a_sweeper_cannot_keep_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=why) as caught:
        load(None, {**GIVEN, **wrong})
    assert caught.value.exit_code == 2


def test_a_programs_settings_are_refused_like_a_files() -> None:
    given: dict[str, Any] = {
        "name": "orders", "dsn": "host=db", "outbox": TableName(table="outbox"), "kafka": KAFKA,
        "dispatch": Dispatch.IMMEDIATE, "settling": Settling.STAMP,
    }  # fmt: skip
    check_settings(Settings(**given, delivery=Delivery.AT_LEAST_ONCE))
    with pytest.raises(ConfigurationInvalid, match="at-least-once"):
        check_settings(Settings(**given))


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"poll_seconds": 0.5}, {"poll_seconds"}),
        ({"dispatch": "relay", "min_age_seconds": 9, "sweep_seconds": 9}, {"min_age_seconds", "sweep_seconds"}),
        ({"min_age_seconds": 9, "sweep_seconds": 9}, set()),
    ],
)
def test_keys_without_effect_are_reported(given: dict[str, Any], idle: set[str]) -> None:
    told: list[str] = []
    load(None, {**GIVEN, **given}, warn=told.append)
    assert {line.split()[0] for line in told} == idle


def test_a_sweeper_polls_at_its_configured_interval() -> None:
    assert every(2.0)(0.5, 10_000.0, 0.001) == 2.0
    assert pause(0.001, 10_000.0, 0.001) > 0.001, "an idle ordinary relay polls less often"
