"""Keeps the logs of servers, relays and other programs of a failed test, even if they are removed meanwhile.

1. While a test runs, a thread makes hard links, twice a second, to every log below the run's temporary directory.
   A link keeps the file when the test or a server's keeper removes its directory.
2. A test that passed has its links removed.
3. For a test that failed, the end of each log is copied to `failures/` in the checkout. The test's report names that
   directory, and the command that repeats the test in the same order.

A log that lives for less than half a second may be missed.
"""

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LOOK_SECONDS = 0.5
_DEPTH = 5
_MOST_BYTES = 2_000_000
# Kafka's topic segments are named `.log` too.
_SEGMENT = re.compile(r"\d{20}\.log")


class KeptLogs:
    """Links to the logs of the test that runs. A context manager: inside, logs are linked as they appear."""

    def __init__(self, places: Path, failures: Path) -> None:
        self._places, self._failures = places, failures
        self.links = Path(tempfile.mkdtemp(prefix="thresher-logs-", dir=places.parent))
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._watch = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "KeptLogs":
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        shutil.rmtree(self.links, ignore_errors=True)

    def look(self) -> None:
        """Link every log that has no link yet."""
        with self._looking:
            for log in _logs(self._places):
                link = self.links / str(log.relative_to(self._places)).replace("/", "__")
                # The log may be gone by now, or be linked already.
                with contextlib.suppress(OSError):
                    os.link(log, link, follow_symlinks=False)

    def forget(self) -> None:
        """Remove the links: the test passed, or another one begins."""
        with self._looking:
            for link in self.links.iterdir():
                link.unlink()

    def save(self, test: str) -> Path | None:
        """Copy the end of each log to a directory of the failed test, and return it; None if the test had no logs."""
        self.look()
        # The run itself may fail at its end, when the links are gone.
        links = sorted(self.links.iterdir()) if self.links.exists() else []
        if not links:
            return None
        place = self._failures / re.sub(r"[^\w.-]+", "_", test)[-150:]
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for link in links:
            with link.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_BYTES))
                name = link.name if link.suffix == ".log" else f"{link.name}.log"
                (place / name).write_bytes(log.read())
        return place

    def _follow(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.look()


def _logs(places: Path) -> Iterator[Path]:
    """Find the logs: `log` and `*.log`, not too deep, and without the data files of Kafka and Postgres."""
    for directory, below, files in os.walk(places):
        here = Path(directory)
        if len(here.relative_to(places).parts) >= _DEPTH or here.name in {"data", "base"}:
            below.clear()
        for name in files:
            if (name == "log" or name.endswith(".log")) and not _SEGMENT.fullmatch(name):
                yield here / name


class Reporter:
    """A pytest plugin that adds to each failed test's report where its logs are, and how to repeat it."""

    def __init__(self, kept: KeptLogs) -> None:
        self._kept = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._kept.forget()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            seed = item.config.getoption("randomly_seed", None)
            told = [f"repeat: ./run test '{item.nodeid}' --randomly-seed={seed}"]
            if place := self._kept.save(item.nodeid):
                told.append(f"logs of servers and programs: {place}")
            report.sections.append(("how to look into it", "\n".join(told)))
        return report
