"""The resident engine: supervised long-running Spark tasks that pass Arrow record batches through functions.

`driver` supervises, `worker` runs inside the Spark task, `session` opens Spark. Driver and worker share the modules
here. Only this package imports pyspark. It knows nothing of outboxes, tables or topics.
Names are imported on first use, so that a light module such as `thresher.spark.policy` does not import pyspark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.spark.driver.engine import Engine
    from thresher.spark.driver.signals import run
    from thresher.spark.driver.snapshot import Snapshot
    from thresher.spark.pipeline import Pipeline, Step
    from thresher.spark.policy import Policy
    from thresher.spark.session.settings import SparkOptions, needed_settings
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
        "needed_settings": "session.settings",
        "run": "driver.signals",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


__all__ = ["Engine", "Pipeline", "Policy", "Shard", "Snapshot", "SparkOptions", "Step", "needed_settings", "run"]
