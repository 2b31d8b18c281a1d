"""The names that `thresher.harvest` exports."""

import subprocess
import sys

import pytest

import thresher.harvest
from tests.processes import environment
from thresher.harvest.harvest import Harvest


def test_exactly_the_exported_names_exist() -> None:
    assert thresher.harvest.Harvest is Harvest
    for name in thresher.harvest.__all__:
        assert getattr(thresher.harvest, name).__module__, name
    with pytest.raises(AttributeError, match="Harvester"):
        _ = thresher.harvest.Harvester  # type: ignore[attr-defined]


def test_importing_harvest_modules_loads_neither_spark_nor_kafka() -> None:
    program = "import sys, thresher.harvest.event; print({'pyspark', 'confluent_kafka', 'psycopg'} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True, timeout=150
    )
    assert answer.stdout == "set()\n"
