"""A tail's configuration: one form, and invalid settings are refused with the reason."""

from typing import Any

import pytest

from thresher.config.problem import ConfigurationInvalid
from thresher.tail.configuration import load_tail_config

GIVEN = {"name": "shop", "data_source": "postgresql://db/shop", "kafka": {"bootstrap.servers": "k:9092"}}


def refused(**keys: Any) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        load_tail_config(None, {**GIVEN, **keys}, {})
    return str(caught.value)


def test_slot_and_publication_are_called_after_the_outbox() -> None:
    settings = load_tail_config(None, {**GIVEN, "outbox": "orders"}, {}).settings
    assert (settings.slot_name, settings.publication_name) == ("thresher_orders", "thresher_orders")
    assert settings.progress.topic == "shop.tail.progress"


def test_more_than_one_shard_is_refused() -> None:
    assert "a slot has one reader" in refused(shards=2)


def test_blocking_keys_is_refused() -> None:
    assert "after later rows of its key" in refused(poison="block-key")


def test_table_settings_are_refused_without_a_table() -> None:
    told = refused(via="log", keep_seconds=5.0, shape="goharvest")
    assert "there is nothing to delete" in told
    assert "no shape but our own" in told


def test_names_that_the_log_cannot_have_are_refused() -> None:
    assert "lower-case letters" in refused(slot="Bad-Slot")
    assert "has a dot in its name" in refused(via="log", outbox="a.b", schema="s")
    dotted = {"outbox": "a.b", "schema": "s", "slot": "good_1"}
    assert load_tail_config(None, {**GIVEN, **dotted}, {}).settings.slot_name == "good_1"


def test_a_schema_before_the_outbox_is_refused_with_a_hint() -> None:
    assert "outbox: give outbox: 'outbox' and schema: 'shop'" in refused(outbox="shop.outbox")


def test_properties_that_exactly_once_rests_on_are_fixed() -> None:
    assert "leave it out" in refused(producer={"enable.idempotence": False})
