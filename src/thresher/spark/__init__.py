"""The resident engine: long Spark tasks that pass Arrow record batches through a chain of functions, supervised.

The only part of Thresher that imports pyspark. It knows no outbox, no table and no topic.
"""

from thresher.spark.engine import Engine
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.settings import SparkOptions
from thresher.spark.shard import Shard
from thresher.spark.signals import run
from thresher.spark.snapshot import Snapshot

__all__ = ["Engine", "Pipeline", "Policy", "Shard", "Snapshot", "SparkOptions", "Step", "run"]
