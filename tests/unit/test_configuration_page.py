"""The configuration page documents every key and every limit, and its examples are accepted."""

import re
from pathlib import Path

import pytest

from maintenance.configuration_table import CAPTURE, QUEUES, TAIL, TRACKER, with_tables
from maintenance.variables import PAGE as LIST
from maintenance.variables import variables
from thresher.capture.configuration import GUARDED as CAPTURE_GUARDED
from thresher.capture.configuration import CaptureForm, load_capture_config
from thresher.config.setting import keys_of
from thresher.harvest.configuration import load
from thresher.harvest.form import KEYS
from thresher.harvest.goharvest_file import KEYS_OF_HARVEST, LIMITS
from thresher.kafka.transactional import GUARDED
from thresher.queue.configuration import QUEUE_GUARDED, QueueConfig, load_queue_config
from thresher.tail.configuration import TailForm, load_tail_config
from thresher.tracker.configuration import OWN_KEYS, load_tracker_config

WHOLE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
PAGE, _, _REST = WHOLE.partition(QUEUES)
OF_QUEUES, _, _REST = _REST.partition(TRACKER)
OF_TRACKER, _, _REST = _REST.partition(TAIL)
OF_TAIL, _, OF_CAPTURE = _REST.partition(CAPTURE)
HEAD = "| key | meaning | values | default |"


def examples(page: str) -> list[str]:
    """Return the configuration files on a page."""
    return re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


EXAMPLES = examples(PAGE)


def rows(head: str, page: str = PAGE) -> dict[str, list[str]]:
    """Return the rows of the table with this head, by each name in the first cell."""
    (table,) = re.findall(rf"^{re.escape(head)}\n\| -.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()]
    return {name: row for row in cells for name in re.findall(r"`([\w.-]+)`", row[0])}


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_are_accepted(example: str, tmp_path: Path) -> None:
    for name in ("data-source", "kafka-password"):
        (tmp_path / name).write_text("host=db\n")
    path = tmp_path / "relay.yaml"
    path.write_text(example.replace("/run/secrets", str(tmp_path)))
    assert load(path, {}).settings.name == "billing"


def test_there_are_examples_of_both_forms() -> None:
    assert len(EXAMPLES) == 4
    assert ["harvest:" in example for example in EXAMPLES] == [False, True, True, False]


def test_the_tables_of_keys_are_made_from_the_forms() -> None:
    assert with_tables(WHOLE) == WHOLE, "run maintenance/configuration_table.py"
    told = rows(HEAD)
    assert set(KEYS) <= set(told)
    assert told["shards"][-2:] == ["1 to 64", "2"]
    assert told["batch_rows"][-2:] == ["1 to 40,000", "10,000"]
    assert told["poll_seconds"][-2:] == ["more than 0, at most 60", "0.001"]
    assert told["status"][-1] == "`127.0.0.1:8640`"
    assert told["data_source"][0] == "`data_source`, `--ds`, `--data-source`, `THRESHER_DS`"


def test_each_of_the_thirteen_limits_has_its_row() -> None:
    told = rows("| `harvest.limits` | goharvest's default | ours | exactly once | at least once |")
    assert set(told) == set(LIMITS)
    assert len(LIMITS) == 13
    for name, limit in LIMITS.items():
        _, default, ours, once, at_least = told[name]
        assert default == limit.default
        assert (f"`{limit.key}`" in ours) == (limit.key is not None)
        if limit.key is None:
            assert once.startswith("accepted, no effect")
            assert at_least.startswith("accepted, no effect")


def test_every_key_of_goharvest_is_documented() -> None:
    for key in KEYS_OF_HARVEST:
        assert f"`harvest.{key}`" in PAGE


def test_refused_properties_are_listed() -> None:
    for name in GUARDED:
        assert f"`{name}`" in PAGE


def test_every_key_of_queues_has_its_row() -> None:
    told = rows(HEAD, OF_QUEUES)
    assert tuple(told) == keys_of(QueueConfig)
    assert told["redelivery-timeout"][-2:] == ["10 to 43,200,000", "60,000"]
    assert told["message-topic"][-1] == "required"
    assert told["redelivery-tracker"][-1] == "none"


def test_every_key_of_the_tracker_has_its_row() -> None:
    told = rows(HEAD, OF_TRACKER)
    assert tuple(told) == OWN_KEYS
    assert told["memory_mb"][-1] == "2,048"
    assert told["use-now-if-no-marker-seen"][-1] == "0"


def test_every_key_of_capture_has_its_row() -> None:
    told = rows(HEAD, OF_CAPTURE)
    assert tuple(name for name in told if name in keys_of(CaptureForm)) == keys_of(CaptureForm)
    assert told["topics"][-1] == "required"
    assert all(f"`{name}`" in OF_CAPTURE for name in CAPTURE_GUARDED)


def test_the_example_of_capture_is_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
    (example,) = examples(page)
    path = tmp_path / "capture.yaml"
    path.write_text(example)
    (mapping,) = load_capture_config(path, {}, {}).settings.mappings
    assert (mapping.key, mapping.columns["customer"]) == (("id",), "customer.name")


def test_the_example_of_queues_is_accepted(tmp_path: Path) -> None:
    (example,) = examples(OF_QUEUES)
    (tmp_path / "kafka-password").write_text("hunter2\n")
    path = tmp_path / "queues.yaml"
    path.write_text(example.replace("/run/secrets", str(tmp_path)))
    form = load_queue_config(path, {}, {}).form
    assert (form.message_topic, form.kafka["sasl.password"]) == ("messages", "hunter2")
    tracker = load_tracker_config(path, {}, {}).form
    assert (tracker.shards, tracker.status) == (2, "0.0.0.0:8640")
    assert tracker.settings.limits[b"payments"].max_deliveries == 3


def test_properties_that_queues_refuse_are_listed() -> None:
    refused = re.findall(
        r"^(?:Properties on which a guarantee|The broker is named by).*?\n\n?(?=\n|\Z)", WHOLE, re.M | re.S
    )
    assert len(refused) == 2
    assert {name for name in QUEUE_GUARDED if f"`{name}`" not in "".join(refused)} == set()


def test_the_tails_keys_and_example_are_documented(tmp_path: Path) -> None:
    assert set(keys_of(TailForm)) <= set(rows(HEAD, OF_TAIL))
    (example,) = examples(OF_TAIL)
    path = tmp_path / "tail.yaml"
    path.write_text(example)
    assert load_tail_config(path, {}, {}).settings.name == "orders"


def test_every_variable_is_in_the_list_of_variables() -> None:
    assert LIST.read_text() == variables(), "run python -m maintenance.variables"
