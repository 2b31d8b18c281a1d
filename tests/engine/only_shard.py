"""The handle that a pipeline's functions get, of the only shard of a pipeline that runs without Spark."""

from contextlib import ExitStack
from typing import Any

from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.shard import Figures, Shard


def only_shard(resources: ExitStack, *, pipeline: str = "tests", **more: Any) -> Shard:
    """Return the shard, whose resources are closed by the caller."""
    return Shard(
        pipeline=pipeline,
        index=0,
        shards=1,
        attempt=1,
        stop_requested=SignalSafeEvent(),
        figures=Figures(),
        resources=resources,
        **more,
    )
