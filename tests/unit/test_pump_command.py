"""The pump's messages about its topic and its history."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thresher.cli.pump import belonging
from thresher.testing.pump import Plan


def said(ds: str | None = None, stack: str | None = None, **changes: Any) -> list[str]:
    environment = changes.pop("environment", {})
    given: dict[str, Any] = {"history": Path("my h.jsonl"), "topic": "pump", **changes}
    plan = Plan(dsn="", records=1, keys=1, run="5f3a", started=datetime.now(UTC), **given)
    return list(belonging(plan, given_ds=ds, stack=stack, environment=environment))


def test_topic_and_history_that_belong_together_are_named() -> None:
    assert said() == [
        "run 5f3a wrote to the topic pump; its history is in my h.jsonl",
        "check it once it is relayed:",
        "  thresher verify --history 'my h.jsonl' --wait 30",
    ]


def test_the_command_names_the_same_servers_and_table() -> None:
    assert said(stack="mine")[2].endswith("--history 'my h.jsonl' --stack mine --wait 30")
    assert said(ds="host=x password=p")[2].endswith("--ds DATA_SOURCE --bootstrap HOST:PORT --wait 30")
    inherited = {"THRESHER_DS": "host=x", "THRESHER_BOOTSTRAP": "k:1"}
    assert said(ds="host=x", environment=inherited)[2].endswith("--history 'my h.jsonl' --wait 30")
    assert said(table="other", schema="app")[2].endswith("--outbox other --schema app --wait 30")


def test_without_a_history_the_pump_says_how_to_keep_one() -> None:
    (line,) = said(history=None)
    assert "with --history FILE, 'thresher verify' can tell what arrived" in line
