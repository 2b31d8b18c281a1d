"""A real standalone Spark cluster on loopback: a master and workers as processes, each with a keeper."""

import contextlib
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark

from tests.engine.driver import FUNCTIONS
from tests.processes import command_line, eventually, parent
from thresher.core.java import find_java
from thresher.devstack.ports import free_port
from thresher.devstack.server import Server

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Cluster:
    """The master and its workers, by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port = free_port()
        self.url = f"spark://127.0.0.1:{self._port}"
        self.workers: dict[str, Server] = {}
        self._secret = secrets.token_hex(16)
        self._properties = directory / "cluster.properties"
        self._properties.touch(mode=0o600)
        self._properties.write_text(
            f"spark.authenticate true\nspark.authenticate.secret {self._secret}\nspark.network.crypto.enabled true\n"
        )
        self.master = self._server("master")

    def _server(self, name: str) -> Server:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return Server(name, directory, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)

    def _start(self, server: Server, role: str, *arguments: str) -> None:
        environment = {
            **find_java().environment,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Dspark.deploy.maxExecutorRetries=-1 "
                f"-Dspark.worker.timeout=10 -Djava.io.tmpdir={server.directory}"
            ),
            "SPARK_LOCAL_DIRS": str(server.directory),
            "SPARK_NO_DAEMONIZE": "1",
            # A Python without Thresher, as on a machine that has only Spark.
            "PYSPARK_PYTHON": sys._base_executable,  # type: ignore[attr-defined]
        }
        given = [f"{name}={value}" for name, value in environment.items()]
        name = f"org.apache.spark.deploy.{role.lower()}.{role}"
        command = ["env", *given, "bash", str(SPARK_CLASS), name, "--host", "127.0.0.1", "--webui-port", "0"]
        server.start([*command, "--properties-file", str(self._properties), *arguments])

    def start(self) -> None:
        self._start(self.master, "Master", "--port", str(self._port))
        eventually(lambda: "I have been elected leader" in self.master.tail(200), 120)
        for name in ("one", "two"):
            self.start_worker(name)
        eventually(lambda: self.master.tail(500).count("Registering worker") >= 2, 120)

    def start_worker(self, name: str) -> None:
        server = self.workers[name] = self._server(name)
        # The announced cores need not exist: enough for all shards, so that one worker can take over the other's.
        self._start(
            server, "Worker", "--cores", "6", "--memory", "4g", "--work-dir", str(server.directory / "work"), self.url
        )

    def options(self, archive: Path) -> dict[str, Any]:
        """Return Spark's options for a driver on this machine that ships its environment."""
        return {
            "master": self.url,
            "archives": [f"{archive}#environment"],
            "python": "./environment/bin/python",
            "py_files": [str(FUNCTIONS)],
            "conf": {
                "spark.authenticate.secret": self._secret,
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                # Temporary files of killed executors are removed with the cluster's directory.
                "spark.executor.extraJavaOptions": (
                    f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={self.directory}"
                ),
            },
        }

    def worker_of(self, pid: int) -> str:
        """Return the worker whose descendant the process is."""
        pids = {server.pid: name for name, server in self.workers.items() if server.running}
        while pid not in pids:
            assert pid > 1, "not a process of this cluster"
            pid = parent(pid)
        return pids[pid]

    def stop(self) -> None:
        for server in (*self.workers.values(), self.master):
            server.end()


def executor_of(pid: int) -> int:
    """Return the executor JVM of a Python worker."""
    while b"CoarseGrainedExecutorBackend" not in command_line(pid):
        pid = parent(pid)
    return pid


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    made = Cluster(directory)
    try:
        made.start()
        yield made
    finally:
        made.stop()
