"""The JVM that an engine starts for itself, in a process session of its own, so that Ctrl-C does not reach it.

The JVM exits when its standard input closes, and therefore when our process dies for any reason. Its temporary files
and sockets are in one directory, which is closed to other users, and which our process removes. If our process is
killed, the JVM removes it; if both are killed, the next start does. Spark's settings, which may hold secrets, are in a
file there, until the JVM has read them: command lines are visible to every user.
"""

import collections
import contextlib
import io
import logging
import os
import re
import shlex
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import JavaGateway
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from thresher.core.cds_archive import CdsArchive
from thresher.core.java import find_java
from thresher.core.secrets import MASK
from thresher.core.throwaway import Throwaway
from thresher.spark.problem import SparkFailed, SparkUnfit, StopForced
from thresher.spark.session.settings import java_options, properties_file
from thresher.spark.signal_safe_event import SignalSafeEvent

logger = logging.getLogger(__name__)
_java = logging.getLogger("thresher.spark.java")

_EXTRA_OPTIONS = "spark.driver.extraJavaOptions"
_LOOK_SECONDS = 0.02
_NOISE = b"WARNING: Using incubator modules"
_PICKED_UP = re.compile(r"(Picked up \w+:).*")
_EXIT_SECONDS = 10.0
# An exit that also writes the CDS archive takes longer.
_ARCHIVE_SECONDS = 60.0
# The name of each temporary directory begins so.
TEMPORARY = "thresher-spark-"
# The longest path of a directory for Spark's Unix sockets, whose names have 42 letters and whose paths may have 107.
LONGEST_DIRECTORY = 63
_environment_lock = threading.Lock()


class Jvm:
    """One JVM with its gateway. After `close` or `kill`, no process and no file of it is left."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        home: Path,
        python: str,
        make_archive: bool,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables` are for the JVM's environment, beside those of our own."""
        java = find_java()
        self._temporary = Throwaway(TEMPORARY, longest=LONGEST_DIRECTORY)
        self._python = python
        self._variables = variables or {}
        self._ending = threading.Lock()
        try:
            jars, place = home / "jars", self._temporary.path
            self._archive = CdsArchive("Spark", java, jars, pyspark.__version__, make=make_archive, workplace=place)
            self._process = self._start(settings, home, java.environment)
        except BaseException:
            self._temporary.remove()
            raise
        self._hooks: Any = None
        self._directory: Any = None
        self._said: collections.deque[str] = collections.deque(maxlen=50)
        self._output = threading.Thread(target=self._pass_on_output, name="spark-output", daemon=True)
        self._output.start()

    @property
    def directory(self) -> Path:
        """The directory of its files and sockets, which no other user can enter."""
        return self._temporary.path

    @property
    def _properties(self) -> Path:
        return self._temporary.path / "spark.properties"

    @property
    def _connection_info(self) -> Path:
        return self._temporary.path / "gateway"

    def _start(self, settings: Mapping[str, str], home: Path, java: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        spark = dict(settings)
        spark[_EXTRA_OPTIONS] = java_options(
            log_configuration=Path(str(resources.files("thresher.spark").joinpath("log4j2.properties"))),
            temporary=self._temporary.path,
            archive=self._archive.java_options(),
            user=spark.get(_EXTRA_OPTIONS, ""),
        )
        self._properties.touch(mode=0o600)
        self._properties.write_text(properties_file(spark), encoding="ascii")
        command = [str(home / "bin" / "spark-submit"), "--properties-file", str(self._properties)]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        environment = {
            **os.environ,
            **java,
            "PYSPARK_PYTHON": self._python,
            "SPARK_CONNECT_MODE": "0",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self._temporary.path),
            **self._variables,
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection_info),
        }
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # Java's output must not mix with the program's
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def _pass_on_output(self) -> None:
        """Log the output of Java and of its workers, without the usual noise, until the pipe is closed."""
        with self._process.stdout or io.BytesIO() as output:
            for line in output:
                if _NOISE not in line and (text := shown_line(line)):
                    self._said.append(text)
                    _java.warning("spark: %s", text)

    def connect(self, abort: SignalSafeEvent) -> JavaGateway:
        """Wait until the JVM is up and return its gateway. Raises `SparkFailed`; `StopForced` once `abort` is set."""
        while not self._connection_info.exists():
            if abort.wait(_LOOK_SECONDS):
                raise StopForced("stopped while Spark was starting")
            if self._process.poll() is not None:
                self._output.join(1.0)
                raise SparkFailed(f"its JVM ended with status {self._process.returncode}: {self._reason()}")
        self._properties.unlink()
        content = self._connection_info.read_bytes()
        port, length = struct.unpack_from(">ii", content)
        secret = content[8 : 8 + length].decode()
        with environment_set({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            gateway: JavaGateway = launch_gateway()
        self._archive.warn_if_unused()
        self._hooks = getattr(gateway.jvm, "org.apache.spark.util.ShutdownHookManager")
        self._directory = gateway.jvm.java.io.File(str(self._temporary.path))
        # If our process is killed, the JVM removes the directory.
        self._hooks.registerShutdownDeleteDir(self._directory)
        return gateway

    @property
    def alive(self) -> bool:
        """Whether the JVM's process runs."""
        return self._process.poll() is None

    def prepare_to_close(self) -> None:
        """Keep the JVM from removing its directory, to which it writes the CDS archive at the end of its exit."""
        self._hooks.removeShutdownDeleteDir(self._directory)

    def _reason(self) -> str:
        telling = [line.strip() for line in self._said if not line.lstrip().startswith("at ")]
        return " / ".join(telling[:3]) or "it printed nothing"

    def close(self, abort: SignalSafeEvent) -> None:
        """Let the JVM exit; kill it if that takes too long or once `abort` is set."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        deadline = time.monotonic() + (_ARCHIVE_SECONDS if self._archive.found is None else _EXIT_SECONDS)
        while self._process.poll() is None and time.monotonic() < deadline and not abort.wait(_LOOK_SECONDS):
            pass
        if self._process.poll() == 0 and not abort.is_set():
            self._archive.keep()
        self.kill()

    def kill(self) -> None:
        """Kill the JVM and remove its files. Harmless when repeated, and safe in several threads."""
        with self._ending:
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    # The whole process group: during the start, the process is a shell with Java below it.
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            with contextlib.suppress(OSError):
                if self._process.stdin is not None:
                    self._process.stdin.close()
            self._temporary.remove()


def shown_line(line: bytes) -> str:
    """Return a line of Java's output for the log, without the options that Java repeats from its variables."""
    return _PICKED_UP.sub(rf"\1 {MASK}", line.decode(errors="replace").rstrip())


@contextlib.contextmanager
def environment_set(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of our process within the block, because PySpark reads them from nowhere else."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def spark_home() -> Path:
    """Return Spark's directory. Raises `SparkUnfit` if its version is not that of the imported PySpark."""
    home = Path(_find_spark_home())
    if not any(home.glob(f"jars/spark-core_*-{pyspark.__version__}.jar")):
        raise SparkUnfit(
            f"SPARK_HOME is {home}, which is not Spark {pyspark.__version__}, the version of the installed PySpark: "
            "unset it, or point it there"
        )
    return home
