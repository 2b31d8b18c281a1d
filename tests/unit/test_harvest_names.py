"""What `thresher.harvest` gives by its own name."""

import subprocess
import sys

import pytest

import thresher.harvest
from tests.processes import environment
from thresher.harvest.harvest import Harvest


def test_every_name_that_it_gives_is_there_and_no_other() -> None:
    assert thresher.harvest.Harvest is Harvest
    for name in thresher.harvest.__all__:
        assert getattr(thresher.harvest, name).__module__, name
    with pytest.raises(AttributeError, match="Harvester"):
        _ = thresher.harvest.Harvester  # type: ignore[attr-defined]


def test_a_module_of_it_costs_no_spark_and_no_broker_client() -> None:
    program = "import sys, thresher.harvest.event; print({'pyspark', 'confluent_kafka', 'psycopg'} & set(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True, timeout=150
    )
    assert answer.stdout == "set()\n"
