"""The resident engine: supervised long-running Spark tasks that pass Arrow record batches through functions.

`driver` supervises, `worker` runs inside the Spark task, `session` gets a Spark; the modules here are shared by both
sides. Only this package imports pyspark. It knows no outbox, no table and no topic.
"""

from thresher.spark.driver.engine import Engine
from thresher.spark.driver.signals import run
from thresher.spark.driver.snapshot import Snapshot
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.session.settings import SparkOptions
from thresher.spark.worker.shard import Shard

__all__ = ["Engine", "Pipeline", "Policy", "Shard", "Snapshot", "SparkOptions", "Step", "run"]
