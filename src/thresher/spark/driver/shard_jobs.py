"""The threads that wait for Spark: one per shard runs its attempts as Spark jobs, one more cancels jobs.

A call into the JVM blocks for as long as the JVM does not answer. The event loop therefore makes no such call. A job
group belongs to one attempt, so that cancelling it affects no other.
"""

import logging
import queue
import secrets
import sys
import threading
from collections.abc import Callable

from thresher.core.secrets import carried
from thresher.core.trusted_modules import judged_directories
from thresher.spark.driver.spark_job import Counts, cancel_job, run_job
from thresher.spark.outcome import Outcome, outcome_of
from thresher.spark.pipeline import Pipeline
from thresher.spark.session.session import Session
from thresher.spark.task_spec import DriverAddress, PackedTaskSpec, TaskSpec

logger = logging.getLogger(__name__)

# Called in a shard's thread with shard, attempt, outcome, and the final counts if the task could return them.
OnEnded = Callable[[int, int, Outcome, Counts | None], None]


class ShardJobs:
    """The Spark jobs of one engine. Its methods queue requests for its threads, and never wait."""

    def __init__(self, pipeline: Pipeline, session: Session, address: DriverAddress, on_ended: OnEnded) -> None:
        self._pipeline = pipeline
        self._session = session
        self._address = address
        self._on_ended = on_ended
        # Tells the job groups of two engines in one Spark apart.
        self._run_id = secrets.token_hex(4)
        # Attempts to run, by shard, and job groups to cancel. None ends the thread.
        self._attempts: list[queue.SimpleQueue[int | None]] = [queue.SimpleQueue() for _ in range(pipeline.shards)]
        self._cancels: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start all threads."""
        threading.Thread(target=self._cancel_jobs, name="engine-cancels", daemon=True).start()
        for shard in range(self._pipeline.shards):
            threading.Thread(target=self._run_attempts, args=(shard,), name=f"shard-{shard}", daemon=True).start()

    def launch(self, shard: int, attempt: int) -> None:
        """Run an attempt after the shard's earlier ones."""
        self._attempts[shard].put(attempt)

    def cancel(self, shard: int, attempt: int) -> None:
        """Cancel an attempt's job. Harmless when it has ended."""
        self._cancels.put(self._group(shard, attempt))

    def end(self, shard: int) -> None:
        """Let the shard's thread end after its last attempt. Harmless when repeated."""
        self._attempts[shard].put(None)

    def close(self) -> None:
        """Let all threads end."""
        for shard in range(self._pipeline.shards):
            self.end(shard)
        self._cancels.put(None)

    def _cancel_jobs(self) -> None:
        while (group := self._cancels.get()) is not None:
            cancel_job(self._session.context, group)

    def _run_attempts(self, shard: int) -> None:
        while (attempt := self._attempts[shard].get()) is not None:
            counts = None
            try:
                outcome, counts = self._run_attempt(shard, attempt)
            except Exception as error:
                logger.exception("an attempt could not be made")
                outcome = outcome_of(error)
            self._on_ended(shard, attempt, outcome, counts)

    def _run_attempt(self, shard: int, attempt: int) -> tuple[Outcome, Counts | None]:
        spec = TaskSpec(
            pipeline=self._pipeline.name,
            shard=shard,
            shards=self._pipeline.shards,
            attempt=attempt,
            steps=carried(self._pipeline.steps),
            policy=self._pipeline.policy,
            address=self._address,
            path=tuple(sys.path) if self._session.local else (),
            judged=judged_directories() if self._session.local else (),
        )
        description = f"{self._pipeline.name}: shard {shard}, attempt {attempt}"
        return run_job(self._session.context, self._group(shard, attempt), description, PackedTaskSpec.pack(spec))

    def _group(self, shard: int, attempt: int) -> str:
        return f"thresher-{self._pipeline.name}-{self._run_id}-{shard}-{attempt}"
