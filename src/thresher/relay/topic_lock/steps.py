"""The pipeline of a relay with topic locks: one worker in each Spark task, which works in rounds."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from thresher.delivery.batch import NOTHING_YET, NothingYet
from thresher.delivery.shard.meter import counting_errors
from thresher.relay.settings import ShardAssignment
from thresher.relay.topic_lock.worker import Worker
from thresher.spark.worker.shard import Shard


def rounds(shard: Shard, config: Mapping[str, Any]) -> Iterator[NothingYet]:
    """Yield once for each round, with a pause between two."""
    assignment: ShardAssignment = config["assignment"]
    while not shard.stopping:
        yield NOTHING_YET
        shard.wait(assignment.settings.topic_locking.rest_seconds)


@counting_errors
def work(shard: Shard, config: Mapping[str, Any], signals: Iterator[NothingYet]) -> None:
    """Work one round for each signal, until the shard stops or an error ends it."""
    # Rows come and go by the thousand and have no reference cycles: collections would be wasted time.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    with closing(Worker(shard, config["assignment"])) as worker:
        for _ in signals:
            worker.round()
