"""A Spark that is opened ahead and outlives engines: a standby's is there when it has to lead.

1. `start` opens a session in a thread, and runs one task that does nothing, so that the workers' parent is there too.
2. `lend` gives it to one engine after another. To an engine it is somebody else's: it ends its shards, and not Spark.
3. `close` ends what is ours of it.
"""

import logging
import threading

from thresher.core.errors import ThresherError
from thresher.spark.bell import Bell
from thresher.spark.problem import EngineLost, SparkFailed, StopForced
from thresher.spark.session.session import Session, open_session
from thresher.spark.session.settings import SparkOptions

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
# What a JVM that does not answer may take before it is ended nevertheless.
_CLOSE_SECONDS = 10.0


class WarmSpark:
    """One session for all engines of a program's life."""

    def __init__(self, options: SparkOptions | None, *, name: str, shards: int) -> None:
        self._options, self._name, self._shards = options or SparkOptions(), name, shards
        self._session: Session | None = None
        self._error: ThresherError | None = None
        self._abort = Bell()
        self._opened, self._warmed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._open, name="spark-warm", daemon=True)

    def start(self) -> None:
        """Begin to open it, and return at once."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether an engine need not wait for it."""
        return self._warmed.is_set()

    def check(self) -> None:
        """Raise what kept it from opening, or `EngineLost` if it was there and is gone. Never waits."""
        if self._error is not None:
            raise self._error
        if self._session is not None and not self._session.alive:
            raise EngineLost("Spark's JVM has ended: start the program again")

    def lend(self, abort: Bell) -> Session:
        """Return the session for one engine, once it is open. Raises as `check`; `StopForced` when the bell rings."""
        while not self._opened.wait(_LOOK_SECONDS):
            if abort.rung:
                raise StopForced("stopped while Spark was starting")
        self.check()
        if self._session is None:
            raise StopForced("stopped while Spark was starting")
        return self._session.lent()

    def close(self, abort: Bell | None = None) -> None:
        """End it, at once when the bell rings. No engine may use it any more. Harmless when repeated."""
        if not self._opened.is_set():
            self._abort.ring("close")
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close(abort or Bell())
            except Exception:
                logger.exception("Spark could not be closed in good order")

    def _open(self) -> None:
        try:
            self._session = open_session(self._options, name=self._name, shards=self._shards, abort=self._abort)
        except StopForced:
            pass
        except ThresherError as error:
            self._error = error
        except Exception as error:
            logger.exception("Spark could not be started")
            self._error = SparkFailed(f"Spark could not be started: {type(error).__name__}: {error}")
        finally:
            self._opened.set()
        if self._session is not None:
            self._session.warm_up()
            self._warmed.set()
