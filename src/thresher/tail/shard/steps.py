"""The first and last step of a tail's pipeline, `read` and `publish`, which the engine runs in a Spark Python worker.

`publish` pulls batches from `read`, and recovers first. So the WAL is not read before `init_transactions`.
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
from thresher.tail.settings import TailAssignment
from thresher.tail.shard.attempt import TailAttempt
from thresher.tail.shard.refused_messages import RefusedMessages

_LOOK_SECONDS = 0.05


def attempt_of(shard: Shard, assignment: TailAssignment) -> TailAttempt:
    """Return the attempt, which `read` and `publish` share."""
    return shard.share(TailAttempt, lambda: TailAttempt(shard, assignment))


def read(shard: Shard, config: Mapping[str, Any]) -> Iterator[Batch | StoredBatch | NothingYet]:
    """Yield the batches that are read ahead. `publish` has recovered before it asks for the first."""
    assignment: TailAssignment = config["assignment"]
    attempt = attempt_of(shard, assignment)
    reserved = assignment.settings.reserved

    def convert(stored: StoredBatch) -> Batch:
        # A row that was sent to the progress topic would be read as progress, and break every later recovery.
        return Batch(rows=rows_of(stored.stored, reserved), generation=stored.generation)

    prefetch = Prefetch(
        attempt.ahead,
        attempt.open_source,
        poll_seconds=0.0,
        convert=None if assignment.settings.transforms else convert,
        step=shard.step("read"),
        # No wait between reads: a read itself waits for the WAL.
        waits=every(0.0),
    )
    refused = RefusedMessages(shard, assignment.settings.outbox)
    with closing(prefetch):
        while not shard.stopping:
            attempt.show()
            if attempt.stream is not None:
                refused.show(*attempt.stream.refused)
            yield attempt.ahead.take(_LOOK_SECONDS) or NOTHING_YET


@counting_errors
def publish(shard: Shard, config: Mapping[str, Any], batches: Iterator[Batch | NothingYet]) -> None:
    """Run the protocol until there are no more batches, or until an error."""
    assignment: TailAssignment = config["assignment"]
    settings = assignment.settings
    # Rows are many and short-lived, and have no reference cycles: frequent garbage collection would be wasted work.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    with shard.step("connect"):
        attempt = attempt_of(shard, assignment)
    me = ShardIdentity(outbox_id=assignment.outbox_id, term=assignment.term, shard=shard.index)
    rules = Rules(
        poison=settings.poison, grace_seconds=settings.limits.grace_seconds, merging=bool(settings.transforms)
    )
    run(shard, protocol(me, rules, attempt.book), attempt.handlers(batches))
