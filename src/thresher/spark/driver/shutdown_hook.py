"""A graceful stop under `spark-submit`, where SIGTERM reaches the JVM and never a Python handler.

A JVM shutdown hook, which runs before Spark's own, calls back into Python and waits until the shards have finished.
"""

import logging
from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import ensure_callback_server_started

logger = logging.getLogger(__name__)

# Higher runs earlier. Spark stops its contexts at priority 50 and removes its directories at 25.
_PRIORITY = 100


class _Drain:
    """A `java.lang.Runnable` in Python."""

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain

    def run(self) -> None:
        """Drain; the JVM calls this when it shuts down."""
        self._drain()

    class Java:
        """The interface that py4j implements for the JVM."""

        implements = ("java.lang.Runnable",)


class ShutdownHook:
    """The hook, installed from construction until `remove`."""

    def __init__(self, gateway: JavaGateway, drain: Callable[[], None], *, seconds: float) -> None:
        ensure_callback_server_started(gateway)
        jvm: Any = gateway.jvm
        self._manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        # Wrapped in a Java thread: the manager compares hooks, and each comparison would be a call into Python.
        self._hook = jvm.java.lang.Thread(_Drain(drain))
        unit = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._manager.addShutdownHook(self._hook, _PRIORITY, int(seconds) + 1, unit)

    def remove(self) -> None:
        """Remove the hook. Does nothing when the JVM is already shutting down."""
        try:
            self._manager.removeShutdownHook(self._hook)
        except Exception as error:  # noqa: BLE001 - the JVM may raise several errors
            logger.debug("the shutdown hook stays", extra={"why": type(error).__name__})
