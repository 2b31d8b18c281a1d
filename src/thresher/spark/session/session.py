"""A Spark session for an engine: the program's own SparkContext, one in the JVM of `spark-submit`, or a new JVM.

1. A program's SparkContext is used as it is and never stopped. Settings that would break the engine are refused.
2. Under `spark-submit` the JVM exists already, and a context is made in it. The user's settings win over ours.
3. Otherwise the engine starts a JVM with the settings of `settings`, and ends it with the session.

A process has at most one session of the second and third kind at a time, because PySpark keeps its JVM in class
variables.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from thresher.core.throwaway import Throwaway
from thresher.spark.problem import SparkFailed, SparkUnfit, StopForced
from thresher.spark.session.certificate import make_certificate
from thresher.spark.session.jvm import LONGEST_DIRECTORY, TEMPORARY, Jvm, environment_set, spark_home
from thresher.spark.session.settings import (
    DAEMON,
    PRELOAD,
    SparkOptions,
    breaking_settings,
    context_settings,
    exposed_arguments,
    exposed_variables,
    is_local,
    master_of,
    page_address,
    read_defaults,
    settings_of,
)
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.tls import Certificate

logger = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
_FORGET_SECONDS = 2.0
_LOOK_SECONDS = 0.05
# The directory of the Unix sockets between Spark and Python. By default it is Java's temporary directory.
_SOCKETS = "spark.python.unix.domain.socket.dir"
# Spark accepts no longer path in this setting.
_LONGEST_GIVEN = 61
# Held by the session that made this process's context, from its opening to its end.
_only_one = threading.Lock()
# Held while a session is opened: until then, `_only_one` is held even by an engine that adopts a context.
_opening = threading.Lock()


class Session:
    """A SparkContext that suits the engine, and its JVM if the engine started it.

    With local workers, `directory` is for sockets, and closed to other users. With others, `certificate` proves this
    driver to them.
    """

    def __init__(
        self,
        context: SparkContext,
        *,
        adopted: bool,
        jvm: Jvm | None,
        directory: Path | None = None,
        certificate: Certificate | None = None,
        throwaway: Throwaway | None = None,
    ) -> None:
        """`throwaway` is removed at the end; it is the `directory` if there is none of a JVM's."""
        self.context = context
        self.directory, self.certificate, self._throwaway = directory, certificate, throwaway
        # Whether the context belongs to the program or is lent: `close` does not stop it.
        self.adopted = adopted
        self._jvm = jvm
        # Whether the JVM is the one of `spark-submit`.
        self.submitted = not adopted and jvm is None
        conf = context.getConf()
        self.master = str(context.master)
        self.local = is_local(self.master)
        # Spark writes IPv6 addresses in brackets; sockets want none.
        self.host = (conf.get("spark.driver.host", "") or "127.0.0.1").strip("[]")
        self.bind = (conf.get("spark.driver.bindAddress", "") or self.host).strip("[]")

    @property
    def owns_jvm(self) -> bool:
        """Whether we started the JVM, and so all processes below it."""
        return self._jvm is not None

    @property
    def alive(self) -> bool:
        """Whether the JVM that we started runs; True for any other JVM."""
        return self._jvm is None or self._jvm.alive

    def lent(self) -> "Session":
        """Return this session for an engine that must not end it."""
        session = Session(self.context, adopted=True, jvm=None, directory=self.directory, certificate=self.certificate)
        session.submitted = self.submitted
        return session

    def warm_up(self) -> None:
        """Run an empty task, which starts the worker daemon. An error is ignored: the next task will report it."""
        with contextlib.suppress(Exception):
            self.context.parallelize([0], 1).count()

    def close(self, abort: SignalSafeEvent) -> None:
        """End the context and the JVM if they are ours, at once if `abort` is set. A hanging JVM is killed."""
        if self.adopted:
            self._remove_directory()
            return
        with quiet_py4j():
            try:
                stopped = call_within(_STOP_SECONDS, self._stop, abort)
                if self._jvm is not None and stopped:
                    self._jvm.close(abort)
            finally:
                if self._jvm is not None:
                    self._jvm.kill()
                    _forget_gateway()
                self._remove_directory()
                SparkContext._active_spark_context = None
                _only_one.release()

    def _remove_directory(self) -> None:
        if self._throwaway is not None:
            self._throwaway.remove()

    def _stop(self) -> None:
        if self._jvm is not None:
            self._jvm.prepare_to_close()
        _stop(self.context)

    def kill(self) -> None:
        """Kill the JVM if it is ours. `close` must still follow."""
        if self._jvm is not None:
            self._jvm.kill()


def open_session(options: SparkOptions, *, name: str, shards: int, abort: SignalSafeEvent) -> Session:
    """Adopt or make a context. Raises `SparkUnfit`, `SparkFailed`, `JavaMissing`; `StopForced` once `abort` is set."""
    for variable in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if os.environ.get(variable):
            raise SparkUnfit(
                f"{variable} is set: Spark Connect cannot run the engine's long tasks, only a classic Spark can; "
                "unset it, or start this program without it"
            )
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise SparkUnfit("PYSPARK_PIN_THREAD is false: shards could not be cancelled one by one; unset it")
    with _opening:
        if not _only_one.acquire(blocking=False):
            raise SparkUnfit(
                "an engine of this process has started Spark already, and a process can start one at a time: "
                "make a SparkContext in the program, and all its engines will use it"
            )
        try:
            session = _find_or_make(options, name, shards, abort)
        except BaseException:
            _only_one.release()
            raise
        if session.adopted:
            _only_one.release()
        return session


def has_context() -> bool:
    """Whether the program already has a SparkContext."""
    return SparkContext._active_spark_context is not None


def call_within(seconds: float, call: Callable[[], object], abort: SignalSafeEvent | None = None) -> bool:
    """Make a call that may hang, in a thread; return whether it returned in time. Its errors are ignored."""
    thread = threading.Thread(target=_quietly, args=(call,), name="spark-call", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline and not (abort is not None and abort.is_set()):
        thread.join(_LOOK_SECONDS)
    return not thread.is_alive()


def _find_or_make(options: SparkOptions, name: str, shards: int, abort: SignalSafeEvent) -> Session:
    active = SparkContext._active_spark_context
    if active is not None:
        _require_fit(active)
        return _session(active, adopted=True)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(options, name, shards, abort)
    return _own(options, name, shards, abort)


def _own(options: SparkOptions, name: str, shards: int, abort: SignalSafeEvent) -> Session:
    home = spark_home()
    defaults = read_defaults(Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf")
    given = defaults | settings_of(options)
    settings = context_settings(given, name=name, shards=shards, submitted=False)
    exposed = exposed_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", "")) + exposed_variables(os.environ)
    _refuse(breaking_settings(settings) + exposed)
    variables = page_address(settings, os.environ)
    python = _python(options)
    if options.preload and is_local(settings["spark.master"]) and python == sys.executable:
        preload = " ".join(options.preload)
        settings = {"spark.python.daemon.module": DAEMON, f"spark.executorEnv.{PRELOAD}": preload, **settings}
    _forget_gateway()
    jvm = Jvm(settings, home=home, python=python, make_archive=options.make_archive, variables=variables)
    try:
        # Encloses the whole start, because a JVM may hang at any point of it.
        with _killed_by(abort, jvm):
            gateway = jvm.connect(abort)
            with environment_set({"PYSPARK_PYTHON": python}):
                context = _context(settings, gateway, options, local_page=bool(variables))
            session = _session(context, adopted=False, jvm=jvm)
        if abort.is_set():
            raise StopForced("too late")  # noqa: TRY301 - the JVM may have been killed already
        return session  # noqa: TRY300
    except BaseException as error:
        jvm.kill()
        _forget_gateway()
        raise _start_failed(error, master_of(given, shards), abort) from error


def _submitted(options: SparkOptions, name: str, shards: int, abort: SignalSafeEvent) -> Session:
    made: list[Session] = []
    errors: list[BaseException] = []
    throwaway: Throwaway | None = None

    def make() -> None:
        nonlocal throwaway
        try:
            gateway = SparkContext._gateway or launch_gateway()
            SparkContext._ensure_initialized(gateway=gateway)
            # Spark's own order: the program's settings win over flags, and flags over files.
            given = dict(SparkConf().getAll()) | settings_of(options)
            settings = context_settings(given, name=name, shards=shards, submitted=True)
            _refuse(breaking_settings(settings) + exposed_variables(os.environ))
            if is_local(settings["spark.master"]):
                throwaway = Throwaway(TEMPORARY, longest=_LONGEST_GIVEN)
                settings = {_SOCKETS: str(throwaway.path), **settings}
            with environment_set({"PYSPARK_PYTHON": _python(options)}):
                context = _context(settings, gateway, options)
            made.append(_session(context, adopted=False, throwaway=throwaway))
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            errors.append(error)

    # In a thread: the JVM, which is not ours to kill, waits without end for a master that does not answer.
    thread = threading.Thread(target=make, name="spark-start", daemon=True)
    thread.start()
    while thread.is_alive() and not abort.wait(_LOOK_SECONDS):
        pass
    thread.join(_STOP_SECONDS if abort.is_set() else None)
    if made:
        return made[0]
    if throwaway is not None:
        throwaway.remove()
    raise _start_failed(errors[0] if errors else StopForced(""), options.master or "the master", abort)


def _session(
    context: SparkContext, *, adopted: bool, jvm: Jvm | None = None, throwaway: Throwaway | None = None
) -> Session:
    """Return the session of a context, with what its lines need: a directory for local ones, else a certificate."""
    if not is_local(str(context.master)):
        return Session(context, adopted=adopted, jvm=jvm, certificate=make_certificate(context._jvm))
    if jvm is not None:
        return Session(context, adopted=adopted, jvm=jvm, directory=jvm.directory)
    throwaway = throwaway or Throwaway(TEMPORARY, longest=LONGEST_DIRECTORY)
    return Session(context, adopted=adopted, jvm=None, directory=throwaway.path, throwaway=throwaway)


def _python(options: SparkOptions) -> str:
    return options.python or os.environ.get("PYSPARK_PYTHON") or sys.executable


def _start_failed(error: BaseException, master: str, abort: SignalSafeEvent) -> BaseException:
    if abort.is_set():
        return StopForced("stopped while Spark was starting")
    if isinstance(error, SparkUnfit):
        return error
    text = str(error).strip().splitlines() or ["it gave no reason"]
    kind = "" if isinstance(error, SparkFailed) else f"{type(error).__name__}: "
    return SparkFailed(f"Spark did not start on {master}: {kind}{text[0]}")


def _context(
    settings: Mapping[str, str], gateway: JavaGateway, options: SparkOptions, *, local_page: bool = False
) -> SparkContext:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    context = SparkContext(conf=conf, gateway=gateway, pyFiles=list(options.py_files))
    if page := context.uiWebUrl:
        where = os.environ.get("SPARK_LOCAL_IP") or ("loopback only" if local_page else "all addresses")
        logger.warning(
            "Spark's page is at %s, and listens on %s: whoever reaches it sees this program's jobs", page, where
        )
    # We end the JVM before this server, which would otherwise print a traceback.
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return context


def _require_fit(context: SparkContext) -> None:
    if context._jsc is None:
        raise SparkUnfit("the program's SparkContext is stopped: start a new one, or none")
    wrong = breaking_settings(dict(context.getConf().getAll())) + exposed_variables(os.environ)
    if not isinstance(context._gateway, ClientServer):
        wrong.append("PYSPARK_PIN_THREAD was false: shards could not be cancelled one by one; unset it")
    _refuse(wrong)


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise SparkUnfit(f"this Spark does not suit the engine: {'; '.join(wrong)}")


def _stop(context: SparkContext) -> None:
    """Do what `SparkContext.stop` does, without waiting up to a second for the accumulator server."""
    context_in_java, context._jsc = context._jsc, None
    server: Any = context._accumulatorServer
    context._accumulatorServer = None  # type: ignore[assignment]

    def close_server() -> None:
        server.shutdown()
        server.server_close()

    threading.Thread(target=close_server, name="spark-accumulators", daemon=True).start()
    context_in_java.stop()


def _forget_gateway() -> None:
    """Make PySpark forget the JVM that we started, which it keeps in class variables, so that it can start another."""
    gateway = SparkContext._gateway
    if gateway is not None:
        call_within(_FORGET_SECONDS, gateway.shutdown)
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None


@contextlib.contextmanager
def _killed_by(abort: SignalSafeEvent, jvm: Jvm) -> Iterator[None]:
    """Within the block, kill the JVM once `abort` is set: every call that waits for the JVM then ends."""
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            if abort.wait(0.1):
                with quiet_py4j():
                    jvm.kill()
                    over.wait()
                return

    listener = threading.Thread(target=listen, name="spark-start", daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        listener.join()


@contextlib.contextmanager
def quiet_py4j() -> Iterator[None]:
    """Silence py4j while a JVM is being ended: it logs a traceback of every unanswered call to the root logger."""

    def others(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root = logging.getLogger()
    root.addFilter(others)
    try:
        yield
    finally:
        root.removeFilter(others)


def _quietly(call: Callable[[], object]) -> None:
    """Make a call and ignore its errors, because the JVM may be gone."""
    with contextlib.suppress(Exception):
        call()
