"""The first and the last step of a relay's pipeline in a Spark task's Python worker: `read` and `publish`.

The publisher pulls batches from the reader, and recovers before it pulls: nothing is read before `init_transactions`.
Reader and publisher share the rows in flight through `ReadAhead`.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from thresher.delivery import exactly_once
from thresher.delivery.batch import NOTHING_YET, Batch, NothingYet, rows_of
from thresher.delivery.carrier import ShardIdentity
from thresher.delivery.reading.prefetch import Prefetch, every, pause
from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.rules import Rules
from thresher.delivery.shard.meter import counting_errors
from thresher.delivery.shard.running import run
from thresher.delivery.stored_rows import StoredBatch
from thresher.relay.progress_source import reserved_topics
from thresher.relay.protocol import mark_purge_reset
from thresher.relay.protocol.mark_purge_reset import Bounds
from thresher.relay.protocol.progress import OutboxProgress
from thresher.relay.settings import Delivery, ShardAssignment
from thresher.relay.shard.attempt import Attempt
from thresher.spark.worker.shard import Shard

_LOOK_SECONDS = 0.05
# The missing topics of a shard that wait for their grace: more than reads name, and the batches that are read ahead.
_MOST_GRACES = 50_000
# With transforms, rows wait one by one, so fewer topics may.
_MOST_SINGLE_GRACES = 5_000


def read_ahead_of(shard: Shard, assignment: ShardAssignment) -> ReadAhead:
    """Return the read-ahead that the reader and the publisher of this attempt share."""
    limits = assignment.settings.limits
    if assignment.settings.delivery is Delivery.AT_LEAST_ONCE:
        bounds = Bounds.of(limits)
        ahead = ReadAheadLimits(
            most_rows=limits.mark_rows,
            most_bytes=limits.batch_bytes,
            window_rows=bounds.window_rows,
            window_bytes=bounds.window_bytes,
        )
    else:
        ahead = ReadAheadLimits(most_rows=limits.batch_rows, most_bytes=limits.batch_bytes)
    return shard.share(ReadAhead, lambda: ReadAhead(ahead))


def read(shard: Shard, config: Mapping[str, Any]) -> Iterator[Batch | StoredBatch | NothingYet]:
    """Yield the batches that are read ahead. The publisher has recovered before it asks for the first."""
    assignment: ShardAssignment = config["assignment"]
    ahead = read_ahead_of(shard, assignment)
    attempt = shard.share(Attempt, lambda: Attempt(shard, assignment, ahead))
    reserved = reserved_topics(assignment.settings)

    def convert(stored: StoredBatch) -> Batch:
        # A row sent to the progress topic would be taken for a progress record, and break recovery.
        return Batch(rows=rows_of(stored.stored, reserved), generation=stored.generation)

    prefetch = Prefetch(
        ahead,
        attempt.open_source,
        poll_seconds=assignment.settings.limits.poll_seconds,
        convert=None if assignment.settings.transform else convert,
        step=shard.step("read"),
        waits=every(assignment.settings.limits.sweep_seconds) if assignment.settings.sweeps else pause,
    )
    with closing(prefetch):
        while not shard.stopping:
            yield ahead.take(_LOOK_SECONDS) or NOTHING_YET


@counting_errors
def publish(shard: Shard, config: Mapping[str, Any], batches: Iterator[Batch | NothingYet]) -> None:
    """Run the protocol until the shard stops or an error ends it."""
    assignment: ShardAssignment = config["assignment"]
    settings = assignment.settings
    # Rows come and go by the ten thousand and have no reference cycles: collections would be wasted time.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    ahead = read_ahead_of(shard, assignment)
    with shard.step("connect"):
        attempt = shard.share(Attempt, lambda: Attempt(shard, assignment, ahead))
        progress_bytes = attempt.progress_bytes()
    me = ShardIdentity(outbox_id=assignment.outbox_id, term=assignment.term, shard=shard.index)
    merging = bool(settings.transform)
    rules = Rules(
        poison=settings.poison,
        grace_seconds=settings.limits.grace_seconds,
        merging=merging,
        most_graces=_MOST_SINGLE_GRACES if merging else _MOST_GRACES,
    )
    progress = OutboxProgress(
        outbox_id=assignment.outbox_id,
        term=assignment.term,
        shard=shard.index,
        # Asked for by each attempt: the last one may have failed because the limit was lowered.
        most_bytes=progress_bytes,
    )
    if settings.delivery is Delivery.AT_LEAST_ONCE:
        steps = mark_purge_reset.protocol(me, rules, progress, Bounds.of(settings.limits))
    else:
        steps = exactly_once.protocol(me, rules, progress)
    run(shard, steps, attempt.handlers(batches))
