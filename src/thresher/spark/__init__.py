"""The resident engine: supervised long-running Spark tasks that pass Arrow record batches through functions.

`driver` supervises, `worker` runs inside the Spark task, `session` gets a Spark; the modules here are shared by both
sides. Only this package imports pyspark. It knows no outbox, no table and no topic.
Names are looked up when they are asked for: light modules such as `thresher.spark.policy` cost no pyspark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.spark.driver.engine import Engine
    from thresher.spark.driver.signals import run
    from thresher.spark.driver.snapshot import Snapshot
    from thresher.spark.pipeline import Pipeline, Step
    from thresher.spark.policy import Policy
    from thresher.spark.session.settings import SparkOptions
    from thresher.spark.worker.shard import Shard
else:
    import importlib

    _HOMES = {
        "Engine": "driver.engine",
        "Pipeline": "pipeline",
        "Policy": "policy",
        "Shard": "worker.shard",
        "Snapshot": "driver.snapshot",
        "SparkOptions": "session.settings",
        "Step": "pipeline",
        "run": "driver.signals",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


__all__ = ["Engine", "Pipeline", "Policy", "Shard", "Snapshot", "SparkOptions", "Step", "run"]
