"""How the engine gets its Spark session: real programs, each in its own process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.driver import driven, running
from tests.processes import environment, spark_submit_variables
from thresher.spark.problem import SparkUnfit
from thresher.spark.session.jvm import spark_home

ENGINE = Path(__file__).parents[1] / "engine"
PROGRAM = """
import signal, sys
sys.path.append({engine!r})
from pyspark.sql import SparkSession
from thresher.spark import Engine, Pipeline, Policy, Step, needed_settings, run
from thresher.spark.problem import SparkUnfit

def make():
    steps = (Step(function="functions:some", config={{"rows": 3}}), Step(function="functions:tally"))
    return Engine(Pipeline(name="guest", shards=1, steps=steps, policy=Policy(silence_seconds=60.0)))

builder = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
unfit = builder.config("spark.speculation", "true").config("spark.authenticate", "false").getOrCreate()
try:
    run(make())
except SparkUnfit as error:
    print(error)
unfit.stop()
fit = builder.config(map=needed_settings("local[3]")).getOrCreate()
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
shot = run(make())
assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
assert shot.shards[0].counts == {{"rows": 3}}, shot
assert fit.range(5).count() == 5
fit.stop()
print("well")
"""


def test_a_programs_own_session_is_checked_and_used() -> None:
    program = PROGRAM.format(engine=str(ENGINE))
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=170,
        env=environment(PYSPARK_PYTHON=sys.executable, **spark_submit_variables()),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    refused, well = answer.stdout.strip().splitlines()
    assert "spark.python.worker.reuse is not set, and true by default" in refused
    assert "spark.speculation is true" in refused
    assert "spark.executorEnv.PYTHONSAFEPATH is not set, and empty by default: workers would import" in refused
    assert "spark.authenticate is false: anybody who reaches Spark's ports could read the passwords" in refused
    assert well == "well"


def test_a_spark_home_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkUnfit, match=r"SPARK_HOME is .* which is not Spark"):
        spark_home()


def test_a_setting_that_breaks_the_engine_is_refused_first() -> None:
    variables = {"SPARK_SUBMIT_OPTS": "-Djavax.net.ssl.keyStorePassword=hunter2"}
    with driven(spark={"conf": {"spark.python.worker.reuse": "true"}}, variables=variables) as driver:
        assert driver.end(60) == 2
        assert "spark.python.worker.reuse is true" in driver.shot["error"]
        assert "SPARK_SUBMIT_OPTS holds javax.net.ssl.keyStorePassword: " in driver.shot["error"]
        assert not any("hunter2" in line for line in driver.said)
        assert len(driver.look()) == 1


def test_a_failed_jvm_and_a_missing_master_are_named() -> None:
    with (
        driven(spark={"conf": {"spark.driver.memory": "nonsense"}}) as one,
        driven(spark={"master": "nowhere://x"}) as other,
    ):
        for driver, told in ((one, "nonsense"), (other, "nowhere://x")):
            assert driver.end(120) == 1
            assert driver.shot["raised"] == "SparkFailed"
            assert told in driver.shot["error"]
            driver.gone()


def test_a_class_archive_is_used_by_the_next_program(tmp_path: Path) -> None:
    variables = {"THRESHER_CACHE": str(tmp_path)}
    with driven([("some", {"rows": 1}), ("tally", {})], variables=variables) as maker:
        assert maker.end(120) == 0
    (archive,) = (tmp_path / "spark").iterdir()
    assert archive.suffix == ".jsa"
    assert archive.stat().st_size > 10_000_000
    with driven(variables=variables) as user:
        user.up()
        assert str(archive) in Path(f"/proc/{user.jvm()}/maps").read_text()
        assert not any("archive" in line or "Java does not use" in line for line in user.said)
        user.process.terminate()
        assert user.end(60) == 0


@pytest.mark.soak
def test_a_damaged_class_archive_is_made_again(tmp_path: Path) -> None:
    variables = {"THRESHER_CACHE": str(tmp_path)}
    finite = [("some", {"rows": 1}), ("tally", {})]
    with driven(finite, variables=variables) as first, driven(finite, variables=variables) as second:
        assert (first.end(90), second.end(90)) == (0, 0)
    (made,) = {path.name.rsplit("-", 1)[0] for path in (tmp_path / "spark").iterdir()}
    archives = sorted((tmp_path / "spark").iterdir())
    assert all(path.suffix == ".jsa" and path.stat().st_size > 10_000_000 for path in archives), made
    with driven(variables=variables) as user:
        user.up()
        assert any(str(path) in Path(f"/proc/{user.jvm()}/maps").read_text() for path in archives)
        assert not any("archive" in line or "Java does not use" in line for line in user.said)
        user.process.terminate()
        assert user.end(60) == 0
    # Java itself would crash on this.
    for path in archives:
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.truncate(1_000_000)
    with driven(variables=variables) as damaged:
        damaged.until(running)
        assert any("is damaged" in line for line in damaged.said)
        damaged.process.terminate()
        assert damaged.end(90) == 0
    assert [path.stat().st_size > 10_000_000 for path in (tmp_path / "spark").iterdir()] == [True]


@pytest.mark.soak
def test_two_programs_run_side_by_side() -> None:
    with driven(shards=1) as one, driven(shards=1) as other:
        one.up()
        other.up()
        one.process.terminate()
        assert one.end(60) == 0
        before = other.shard(0)["counts"]["rows"]
        other.until(lambda shot: shot["shards"][0]["counts"]["rows"] > before)
