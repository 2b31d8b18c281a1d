"""A Postgres and a Kafka cluster that start and stop together.

A throwaway stack has a temporary directory, and disappears with its owner, even after `kill -9`: the servers' keepers
end them and remove their data. A kept stack has a given directory, and shuts down cleanly.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from thresher.core.throwaway import Throwaway
from thresher.devstack.broker import Kafka, KafkaOptions
from thresher.devstack.jars import Progress
from thresher.devstack.postgres import Postgres, PostgresOptions
from thresher.devstack.server import Server

_PREFIX = "thresher-stack-"


class Stack:
    """Both servers, ready when `start` returns. A context manager: entering starts, leaving stops.

    Without a directory the data is removed at the end; with one it is kept, and the next start uses it.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        postgres: PostgresOptions | None = None,
        kafka: KafkaOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._temporary: Throwaway | None = None
        if directory is None:
            self._temporary = Throwaway(_PREFIX)
            directory = self._temporary.path
        self._throwaway = self._temporary is not None
        self.directory = directory
        self._progress = progress
        try:
            self.postgres = Postgres(
                directory / "postgres",
                postgres or PostgresOptions(durable=not self._throwaway),
                sweep=self._throwaway,
            )
            self.kafka = Kafka(directory, kafka or KafkaOptions(), sweep=self._throwaway)
        except BaseException:
            self._remove()
            raise

    @property
    def servers(self) -> list[Server]:
        """Every server process of the stack."""
        return [self.postgres.server, *self.kafka.nodes.values()]

    def start(self) -> None:
        """Start everything and return when it is ready; on any error nothing is left running."""
        try:
            # The download of the broker's jars comes first, so that its progress is shown alone.
            self.kafka.prepare(self._progress)
            with ThreadPoolExecutor(max_workers=2) as pool:
                # Both start in parallel.
                starts = [pool.submit(self._start_postgres), pool.submit(self.kafka.start)]
            for started in starts:
                started.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both servers: cleanly if the data is kept; otherwise the data is removed. Harmless when not running."""
        try:
            with ThreadPoolExecutor(max_workers=len(self.servers)) as pool:
                list(pool.map(Server.end if self._throwaway else Server.stop, self.servers))
        finally:
            self._remove()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_postgres(self) -> None:
        self.postgres.prepare()
        self.postgres.start()

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.remove()
