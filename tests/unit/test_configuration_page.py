"""The page on configuration tells of every key and every limit, and its examples are taken."""

import re
from pathlib import Path

import pytest

from thresher.config.docs_table import with_table
from thresher.harvest.configuration import load
from thresher.harvest.form import KEYS, RelayForm
from thresher.harvest.reaper import KEYS_OF_HARVEST, LIMITS
from thresher.kafka.transactional import GUARDED

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows(head: str) -> dict[str, list[str]]:
    """The rows of the table with this head, by each name in their first cell."""
    (table,) = re.findall(rf"^{re.escape(head)}\n\| -.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()]
    return {name: row for row in cells for name in re.findall(r"`([\w.]+)`", row[0])}


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_are_taken(example: str, tmp_path: Path) -> None:
    for name in ("data-source", "kafka-password"):
        (tmp_path / name).write_text("host=db\n")
    path = tmp_path / "relay.yaml"
    path.write_text(example.replace("/run/secrets", str(tmp_path)))
    assert load(path, {}).settings.name == "billing"


def test_there_are_examples_of_both_forms() -> None:
    assert len(EXAMPLES) == 4
    assert ["harvest:" in example for example in EXAMPLES] == [False, True, True, False]


def test_the_table_of_keys_is_made_from_the_form() -> None:
    assert with_table(PAGE, RelayForm) == PAGE, "run maintenance/configuration_table.py"
    told = rows("| key | meaning | values | default |")
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


def test_every_key_of_goharvests_is_told_of() -> None:
    for key in KEYS_OF_HARVEST:
        assert f"`harvest.{key}`" in PAGE


def test_what_is_refused_is_listed() -> None:
    for name in GUARDED:
        assert f"`{name}`" in PAGE
