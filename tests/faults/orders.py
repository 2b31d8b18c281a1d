"""Orders to workers with the hook `crash_hook`, and their reports: the test's side of their directory."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from tests.faults import crash_hook
from tests.processes import eventually

# Seen: 3 s until all workers have reached their crash points, 9 s with a driver that has to start first.
ARRIVAL_SECONDS = 150.0
# The policy of programs whose workers stop at crash points: however long they stay there, only the test ends them.
PATIENT: dict[str, Any] = {"silence_seconds": 600.0, "deaf_seconds": 600.0}


class Orders:
    """A directory with the orders to the shards of one pipeline. `said` explains a worker that does not arrive."""

    def __init__(self, directory: Path, said: Callable[[], str] = lambda: "") -> None:
        self.directory = directory
        self._said = said

    @classmethod
    @contextlib.contextmanager
    def of_the_run(cls, left: str = "", **variables: str) -> Iterator[Self]:
        """Yield the orders of workers on the run's Spark: of one pipeline at a time.

        `left` counts rows after a recovery, as in `crash_hook.variables`, with these variables.
        """
        directory = crash_hook.of_the_run()
        directory.mkdir()
        (directory / "variables").write_text(json.dumps({**crash_hook.variables(directory, left), **variables}))
        try:
            yield cls(directory)
        finally:
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()

    def stop(self, shard: int, point: str) -> None:
        """Order the shard's worker to stop at a crash point."""
        draft = self.directory / f"draft-{shard}"
        draft.write_text(str(point))
        draft.rename(self.directory / f"order-{shard}")

    def arrived(self, shard: int, point: str) -> dict[str, Any]:
        """Wait until the worker has stopped there, and return its report: process and rows in flight."""
        path = self.directory / f"arrived-{shard}"
        eventually(path.exists, ARRIVAL_SECONDS, lambda: f"no worker reached {point} on shard {shard}: {self._said()}")
        found: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        assert found["point"] == point
        return found

    def has_arrived(self, shard: int) -> bool:
        """Whether the shard's worker has stopped."""
        return (self.directory / f"arrived-{shard}").exists()

    def expect_recovery(self, shard: int, rows: list[int], number: int = 0) -> None:
        """Tell the shard's next worker which rows were in flight at the kill with this number."""
        draft = self.directory / f"hit-draft-{shard}"
        draft.write_text(json.dumps({"rows": rows, "number": number}))
        draft.rename(self.directory / f"hit-{shard}")

    def recoveries(self) -> list[dict[str, Any]]:
        """Return the workers' reports after recoveries."""
        path = self.directory / "recovered"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
