"""A Spark to run on: the program's own where it has one, the one of `spark-submit`, or a new one.

1. A program's SparkContext is used as it is, if its settings do not break the engine, and never stopped.
2. Under `spark-submit` the JVM is there already: a context is made in it, with what the user set before what we would.
3. Otherwise a JVM is started with the settings of `settings`, and ended with the session.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from thresher.spark.bell import Bell
from thresher.spark.jvm import Jvm, environment_set
from thresher.spark.problem import SparkFailed, SparkUnfit, StopForced
from thresher.spark.settings import SparkOptions, breaking, default_master, is_local, ours

logger = logging.getLogger(__name__)

_STOP_SECONDS = 10.0


class Session:
    """A context that works for the engine, and what is needed to end it."""

    def __init__(self, context: SparkContext, *, adopted: bool, jvm: Jvm | None) -> None:
        self.context = context
        # Somebody else's: not to be stopped.
        self.adopted = adopted
        self._jvm = jvm
        conf = context.getConf()
        self.master = str(context.master)
        self.local = is_local(self.master)
        self.host = conf.get("spark.driver.host", "") or "127.0.0.1"
        self.bind = conf.get("spark.driver.bindAddress", "") or self.host

    @property
    def submitted(self) -> bool:
        """Whether the JVM is the one of `spark-submit`."""
        return not self.adopted and self._jvm is None

    def close(self, abort: Bell) -> None:
        """End what is ours, at once when the bell rings. A JVM that does not answer is killed."""
        if self.adopted:
            return
        stopper = threading.Thread(target=_stop, args=(self.context,), name="spark-stop", daemon=True)
        stopper.start()
        left = _STOP_SECONDS
        while stopper.is_alive() and left > 0 and not abort.rung:
            stopper.join(0.05)
            left -= 0.05
        if self._jvm is not None:
            if stopper.is_alive():
                self._jvm.kill()
            else:
                self._jvm.close(abort)
        _forget_gateway()

    def kill(self) -> None:
        """End what is ours at once."""
        if self._jvm is not None:
            self._jvm.kill()
            _forget_gateway()


def open_session(options: SparkOptions, *, name: str, shards: int, abort: Bell) -> Session:
    """Find or make a Spark. Raises `SparkUnfit`, `SparkFailed`, `JavaMissing`; `StopForced` when the bell rings."""
    for variable in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if os.environ.get(variable):
            raise SparkUnfit(
                f"{variable} is set: Spark Connect cannot run the engine's long tasks, only a classic Spark can; "
                "unset it, or start this program without it"
            )
    active = SparkContext._active_spark_context
    if active is not None:
        _require_fit(active)
        return Session(active, adopted=True, jvm=None)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(options, name, shards)
    return _own(options, name, shards, abort)


def has_context() -> bool:
    """Whether the program has a SparkContext already, whose surroundings are not ours."""
    return SparkContext._active_spark_context is not None


def _own(options: SparkOptions, name: str, shards: int, abort: Bell) -> Session:
    master = options.master or default_master(shards)
    settings = ours(options, name=name, shards=shards, master=master, submitted=False)
    _refuse(breaking(settings))
    python = options.python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    _forget_gateway()
    jvm = Jvm(settings, python=python, make_archive=options.make_archive)
    try:
        gateway = jvm.connect(abort)
        with environment_set({"PYSPARK_PYTHON": python}), _killed_by(abort, jvm):
            context = _context(settings, gateway, options)
        return Session(context, adopted=False, jvm=jvm)
    except BaseException as error:
        jvm.kill()
        _forget_gateway()
        if abort.rung:
            raise StopForced("stopped while Spark was starting") from None
        raise SparkFailed(f"Spark did not start on {master}: {_first_line(error)}") from error


def _submitted(options: SparkOptions, name: str, shards: int) -> Session:
    gateway = launch_gateway()
    SparkContext._ensure_initialized(gateway=gateway)
    given = dict(SparkConf().getAll())
    master = given.get("spark.master") or options.master or default_master(shards)
    settings = ours(options, name=name, shards=shards, master=master, submitted=True) | given
    _refuse(breaking(settings))
    python = options.python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    try:
        with environment_set({"PYSPARK_PYTHON": python}):
            context = _context(settings, gateway, options)
    except Exception as error:
        raise SparkFailed(f"Spark did not start on {master}: {_first_line(error)}") from error
    return Session(context, adopted=False, jvm=None)


def _context(settings: dict[str, str], gateway: JavaGateway, options: SparkOptions) -> SparkContext:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    context = SparkContext(conf=conf, gateway=gateway, pyFiles=list(options.py_files))
    # It would print a traceback when the JVM goes first, which is how we end it.
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return context


def _require_fit(context: SparkContext) -> None:
    wrong = breaking(dict(context.getConf().getAll()))
    if not isinstance(context._gateway, ClientServer):
        wrong.append("PYSPARK_PIN_THREAD is false: shards could not be cancelled one by one; unset it")
    if context._jsc is None:
        raise SparkUnfit("the program's SparkContext is stopped: start a new one, or none")
    _refuse(wrong)


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise SparkUnfit(f"this Spark would break the engine: {'; '.join(wrong)}")


def _stop(context: SparkContext) -> None:
    """Do what `SparkContext.stop` does, without its wait of up to a second for a server that nobody uses any more."""
    context_in_java, context._jsc = context._jsc, None
    server, context._accumulatorServer = context._accumulatorServer, None  # type: ignore[assignment]

    def close_server() -> None:
        server.shutdown()
        server.server_close()

    threading.Thread(target=close_server, name="spark-accumulators", daemon=True).start()
    _quietly(context_in_java.stop)


def _forget_gateway() -> None:
    """Let PySpark start anew after its JVM is gone: it keeps it in its classes."""
    gateway = SparkContext._gateway
    if gateway is not None:
        _quietly(gateway.shutdown)
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None


@contextlib.contextmanager
def _killed_by(abort: Bell, jvm: Jvm) -> Iterator[None]:
    """Kill the JVM when the bell rings meanwhile, which ends whatever waits for it."""
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            if abort.wait(0.1):
                jvm.kill()
                return

    listener = threading.Thread(target=listen, name="spark-start", daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        listener.join()


def _quietly(call: Callable[[], object]) -> None:
    """Call what may find its JVM gone: it is being ended anyway."""
    with contextlib.suppress(Exception):
        call()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    if isinstance(error, SparkFailed):
        return text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
