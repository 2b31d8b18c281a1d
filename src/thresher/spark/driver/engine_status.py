"""The state that the threads of one engine share: its first error, and the requests to stop and to kill."""

import threading

from thresher.core.errors import ThresherError
from thresher.spark.driver.snapshot import EngineState
from thresher.spark.signal_safe_event import SignalSafeEvent


class EngineStatus:
    """Read in any thread. `done` is set once, when nothing of the engine is left running."""

    def __init__(self) -> None:
        self.state = EngineState.NEW
        self.error: ThresherError | None = None
        self.stop_requested, self.kill_requested = SignalSafeEvent(), SignalSafeEvent()
        self.done = threading.Event()

    def fail(self, error: ThresherError) -> None:
        """Note why the engine ends. The first error stays."""
        if self.error is None:
            self.error = error

    def finish(self) -> None:
        """Note that the engine has ended."""
        self.state = EngineState.DONE if self.error is None else EngineState.FAILED
        self.done.set()
