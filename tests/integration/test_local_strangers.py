"""What another user of the driver's machine gets from a running engine: nothing, by any port, file or command line.

The pipelines are attacked where they run as programs: in the acceptance tests of `thresher run`, `tail run` and
`capture run`, and under `spark-submit`.
"""

from pathlib import Path
from typing import Any

from tests.engine.driver import Driver, driven, running
from tests.stranger import attack_program

SECRET = "hunter2-very-secret"
# Modules that a worker imports by itself. A planted one leaves a mark.
PLANTED = ("pyspark", "pyarrow", "thresher", "random", "socket")


def test_another_user_steals_nothing_and_stops_nothing(tmp_path: Path) -> None:
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(3)\n"
        )
    steps: list[tuple[str, dict[str, Any]]] = [("ticks", {"password": SECRET}), ("tally", {})]
    spark = {"conf": {"spark.ssl.keyPassword": SECRET, "spark.ui.enabled": "true"}}
    with driven(steps, spark=spark, directory=tmp_path) as driver:
        before = driver.until(running)["shards"]
        assert any("Spark's page is at http://127.0.0.1:" in line for line in driver.said)
        # Java's gateway, Spark's two and its page: Python's own sockets, and the line, are not among them.
        attack_program(driver.process.pid, ports=4, secrets=[SECRET], meanwhile=lambda: went_on(driver))
        after = went_on(driver)
        for shard, now in zip(before, after, strict=True):
            assert [now[key] for key in ("attempt", "pid", "restarts")] == [
                shard[key] for key in ("attempt", "pid", "restarts")
            ]
        assert not (tmp_path / "ran").exists()
        driver.process.terminate()
        assert driver.end(60) == 0


def went_on(driver: Driver) -> Any:
    """Wait until every shard has counted further, and return the shards."""
    rows = [shard["counts"]["rows"] for shard in driver.until(running)["shards"]]
    return driver.until(
        lambda shot: all(shard["counts"]["rows"] > count for shard, count in zip(shot["shards"], rows, strict=True))
    )["shards"]
