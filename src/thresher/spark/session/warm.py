"""A warm Spark session: opened ahead, so that a standby that becomes the leader need not wait for Spark.

1. `start` opens a session in a thread, and runs one empty task, which also starts the worker daemon.
2. `lend` gives the session to one engine after another. An engine ends its shards, and leaves Spark running.
3. `close` ends the session.
"""

import logging
import threading

from thresher.core.errors import ThresherError
from thresher.spark.problem import EngineLost, SparkFailed, StopForced
from thresher.spark.session.session import Session, open_session
from thresher.spark.session.settings import SparkOptions
from thresher.spark.signal_safe_event import SignalSafeEvent

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
# How long `close` waits for a session that is still opening.
_CLOSE_SECONDS = 10.0


class WarmSpark:
    """One session for all engines of a program, one engine at a time."""

    def __init__(self, options: SparkOptions | None, *, name: str, shards: int) -> None:
        self._options, self._name, self._shards = options or SparkOptions(), name, shards
        self._session: Session | None = None
        self._error: ThresherError | None = None
        self._abort = SignalSafeEvent()
        self._opened, self._warmed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._open, name="spark-warm", daemon=True)

    def start(self) -> None:
        """Begin to open the session, and return at once."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the session is open and its worker daemon is running."""
        return self._warmed.is_set()

    def check(self) -> None:
        """Raise the error that kept the session from opening, or `EngineLost` if its JVM has ended. Never waits."""
        if self._error is not None:
            raise self._error
        if self._session is not None and not self._session.alive:
            raise EngineLost("Spark's JVM has ended: start the program again")

    def lend(self, abort: SignalSafeEvent) -> Session:
        """Return the session for one engine, once it is open. Raises as `check`; `StopForced` once `abort` is set."""
        while not self._opened.wait(_LOOK_SECONDS):
            if abort.is_set():
                raise StopForced("stopped while Spark was starting")
        self.check()
        if self._session is None:
            raise StopForced("stopped while Spark was starting")
        return self._session.lent()

    def close(self, abort: SignalSafeEvent | None = None) -> None:
        """End the session, at once if `abort` is set. No engine may use it any more. Harmless when repeated."""
        if not self._opened.is_set():
            self._abort.set("close")
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close(abort or SignalSafeEvent())
            except Exception:
                logger.exception("Spark could not be closed gracefully")

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
