"""A graceful stop under `spark-submit`, where SIGTERM reaches the JVM and never a Python handler.

1. A JVM shutdown hook, which runs before Spark's own, opens the latch `asked`, and waits for the latch `drained`.
2. A thread of Python waits for `asked` in a call into the JVM. It drains, and opens `drained`.
3. The hook goes on when the shards have finished, when its time is over, or when the Python process has ended.

The hook consists of Java's own classes. Python takes no calls: py4j's callback server would obey every user of the
machine.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaGateway

logger = logging.getLogger(__name__)

# Higher runs earlier. Spark stops its contexts at priority 50 and removes its directories at 25.
_PRIORITY = 100


class ShutdownHook:
    """The hook, installed from construction until `remove`."""

    def __init__(self, gateway: JavaGateway, drain: Callable[[], None], *, seconds: float) -> None:
        jvm: Any = gateway.jvm
        self._drain, self._removed = drain, False
        latch = jvm.java.util.concurrent.CountDownLatch
        self._asked, self._drained = latch(1), latch(1)
        handles = jvm.java.lang.invoke.MethodHandles
        returns_nothing = jvm.java.lang.invoke.MethodType.methodType(jvm.java.lang.Void.TYPE)

        def handle(latch: Any, method: str) -> Any:
            return handles.publicLookup().bind(latch, method, returns_nothing)

        def runnable(target: Any) -> Any:
            interface = jvm.java.lang.Class.forName("java.lang.Runnable")
            return jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(interface, target)

        # The second argument is called first.
        self._hook = runnable(handles.foldArguments(handle(self._drained, "await"), handle(self._asked, "countDown")))
        us = jvm.java.lang.ProcessHandle.of(os.getpid())
        if us.isPresent():
            us.get().onExit().thenRun(runnable(handle(self._drained, "countDown")))
        self._manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        unit = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._manager.addShutdownHook(self._hook, _PRIORITY, int(seconds) + 1, unit)
        threading.Thread(target=self._wait, name="engine-shutdown-hook", daemon=True).start()

    def _wait(self) -> None:
        try:
            getattr(self._asked, "await")()
            if not self._removed:
                self._drain()
            self._drained.countDown()
        except Exception as error:  # noqa: BLE001 - the JVM is gone, which the engine notices by itself
            logger.debug("the JVM ended without its shutdown hook", extra={"why": type(error).__name__})

    def remove(self) -> None:
        """Remove the hook. Does nothing when the JVM is already shutting down."""
        self._removed = True
        try:
            self._manager.removeShutdownHook(self._hook)
        except Exception as error:  # noqa: BLE001 - the JVM may raise several errors
            logger.debug("the shutdown hook stays", extra={"why": type(error).__name__})
        with contextlib.suppress(Exception):
            self._asked.countDown()
