"""The two ends of a tail's pipeline, which the engine runs in a Python worker of a Spark task: `read` and `publish`.

The publisher pulls, and recovers before it pulls: the log is not read before `init_transactions`.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from thresher.delivery.batch import NOTHING_YET, Batch, NothingYet, rows_of
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.reading.prefetch import Prefetch, every
from thresher.delivery.rules import Rules
from thresher.delivery.shard.meter import counting_errors
from thresher.delivery.shard.running import run
from thresher.delivery.stored_rows import StoredBatch
from thresher.spark.worker.shard import Shard
from thresher.tail.protocol import protocol
from thresher.tail.settings import TailMandate
from thresher.tail.shard.attempt import TailAttempt

_LOOK_SECONDS = 0.05


def attempt_of(shard: Shard, mandate: TailMandate) -> TailAttempt:
    """Return what the two ends of this attempt share."""
    return shard.share(TailAttempt, lambda: TailAttempt(shard, mandate))


def read(shard: Shard, config: Mapping[str, Any]) -> Iterator[Batch | StoredBatch | NothingYet]:
    """Give the batches that are read ahead. The publisher has recovered by the time the first is asked for."""
    mandate: TailMandate = config["mandate"]
    attempt = attempt_of(shard, mandate)
    reserved = mandate.settings.reserved

    def convert(stored: StoredBatch) -> Batch:
        # A row in the progress topic would be taken for progress, and nobody could recover from it.
        return Batch(rows=rows_of(stored.stored, reserved), generation=stored.generation)

    prefetch = Prefetch(
        attempt.ahead,
        attempt.open_source,
        poll_seconds=0.0,
        convert=None if mandate.settings.transforms else convert,
        step=shard.step("read"),
        # A look waits for the log itself.
        waits=every(0.0),
    )
    with closing(prefetch):
        while not shard.stopping:
            attempt.show()
            yield attempt.ahead.take(_LOOK_SECONDS) or NOTHING_YET


@counting_errors
def publish(shard: Shard, config: Mapping[str, Any], batches: Iterator[Batch | NothingYet]) -> None:
    """Run the protocol to its end: the chain runs dry, or something fails."""
    mandate: TailMandate = config["mandate"]
    settings = mandate.settings
    # Rows come and go by the ten thousand and have no cycles: looking through them for some is in vain.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    with shard.step("connect"):
        attempt = attempt_of(shard, mandate)
    me = ShardIdentity(outbox_id=mandate.outbox_id, term=mandate.term, shard=shard.index)
    rules = Rules(
        poison=settings.poison, grace_seconds=settings.limits.grace_seconds, merging=bool(settings.transforms)
    )
    run(shard, protocol(me, rules, attempt.book), attempt.handlers(batches))
