"""The watch over one term: looks at the shards and at what the workload names, in a thread, until the term is over.

1. A shard that has failed for good stops the engine: the others alone are no pipeline.
2. Trouble is noted until a look at the same thing succeeds, and counted each time.
3. Any other problem is the reason why the leadership ends. It is kept, and the engine is stopped.
4. A watch that breaks ends the leadership too: unwatched, it could go on under a newer term for ever.

A finding after the end of the term is dropped: it concerns the next one.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from thresher.core.errors import PipelineProblem, ThresherError, Trouble, kind_of
from thresher.service.ledger import Ledger
from thresher.service.workload import Look, Term, Workload
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.supervision import Phase
from thresher.spark.problem import EngineProblem

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0
_END_SECONDS = 5.0


class Watching:
    """Watches one term while its engine runs."""

    def __init__(
        self, workload: Workload, term: Term, engine: Engine, ledger: Ledger, *, stopping: Callable[[], bool]
    ) -> None:
        self._name, self._label = workload.name, workload.wording.label
        self._term, self._engine, self._ledger, self._stopping = term, engine, ledger, stopping
        # Why the leadership has to end.
        self.error: ThresherError | None = None
        # The kind and the text of the trouble met, by what was looked at, while it lasts.
        self._troubles: dict[str, tuple[str, str]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{self._label}-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """The term is over. A look that hangs in a client is not waited for for long."""
        self._over.set()
        self._thread.join(_END_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what keeps it from looking, if anything does."""
        return next(iter(self._troubles.copy().values()), None)

    def _run(self) -> None:
        try:
            with self._term.watch() as looks:
                self._look_on(looks)
        except Exception as error:
            message = f"the {self._label}'s watch broke"
            logger.exception(message, extra={self._label: self._name})
            self._ledger.count_error(error)
            self._blame(EngineProblem(f"{message}, which is a bug: {type(error).__name__}: {error}"))

    def _look_on(self, looks: Sequence[Look]) -> None:
        looked = [time.monotonic()] * len(looks)
        while not self._over.wait(_WATCH_SECONDS) and not self._stopping() and not self._engine.done:
            if any(shard.state is Phase.FAILED for shard in self._engine.snapshot().shards):
                self._engine.request_stop()
                return
            try:
                for place, look in enumerate(looks):
                    if time.monotonic() - looked[place] >= look.every_seconds:
                        looked[place] = time.monotonic()
                        self._look(look)
            except Trouble:
                continue
            except PipelineProblem as error:
                self._ledger.count_error(error)
                self._blame(error)
                return

    def _look(self, look: Look) -> None:
        """Look once, and note trouble until a look at the same thing succeeds."""
        try:
            look.run()
        except Trouble as error:
            self._ledger.count_error(error)
            self._troubles[look.at] = (kind_of(error), str(error))
            raise
        self._troubles.pop(look.at, None)

    def _blame(self, error: ThresherError) -> None:
        if not self._over.is_set():
            self.error = error
        self._engine.request_stop()
