import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.faults.proxied import proxied, proxy  # noqa: F401 - fixtures
from tests.kept_logs import KeptLogs, Reporter
from tests.processes import ROOT, eventually, marked
from tests.property.examples import QUICK
from tests.servers import kafka_options
from thresher.core.throwaway import sweep
from thresher.devstack.shared import running_stack
from thresher.devstack.stack import Stack
from thresher.spark.bell import Bell
from thresher.spark.driver.engine import Engine
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.session.session import Session, _only_one, open_session
from thresher.spark.session.settings import SparkOptions

pytest_plugins = ["thresher.devstack.fixtures"]

# A machine that stalls is no fault of an example, nor of what draws it.
settings.register_profile("thresher", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("thresher"), max_examples=20)
settings.load_profile("quick" if QUICK else "thresher")

# For so many shards the run's Spark has slots at once.
SLOTS = 8
# Where tests take long, the longest first.
_LONG = ("test_relay_crash_points", "crash/", "acceptance/", "test_election", "integration/", "contract/", "property/")

# Where engines of this process, and so their local workers, find the functions under test.
sys.path.append(str(Path(__file__).with_name("engine")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, file by file, so that of two who share the tests neither waits for the other."""
    items.sort(key=lambda item: next((place for place, part in enumerate(_LONG) if part in item.nodeid), len(_LONG)))


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the run a temporary directory of its own; at the very end it is empty, and no process of the run is left."""
    mark = str(uuid.uuid4())
    places = Path(tempfile.mkdtemp(prefix="thresher-tests-"))
    places.chmod(0o711)  # the database's account passes through
    os.environ.update(THRESHER_TEST_RUN=mark, TMPDIR=str(places))
    tempfile.tempdir = str(places)
    with KeptLogs(places, ROOT / "failures") as kept:
        request.config.pluginmanager.register(Reporter(kept))
        yield

    def strays() -> list[str]:
        # What killed processes leave, the next Spark removes once it is a minute old: here no other follows.
        sweep("thresher-spark-")
        # Our own environment is as it was when we started, so we are not among them.
        files = [path.name for path in places.iterdir() if path.name[:10] != "pytest-of-"]
        # Python's own helper of `multiprocessing` ends with this process and not before.
        return [
            command for command in marked(mark).values() if "multiprocessing.resource_tracker" not in command
        ] + files

    eventually(lambda: not strays(), 120, lambda: f"left behind: {strays()}")
    shutil.rmtree(places, ignore_errors=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The servers of the run: an account that ACLs bind, one that comes by SASL_SSL, and a listener for a proxy."""
    with running_stack(kafka_options()) as running:
        yield running


Engines = Callable[..., AbstractContextManager[Engine]]


@pytest.fixture(scope="session")
def spark() -> Iterator[Session]:
    """One local Spark for the whole run."""
    session = open_session(SparkOptions(master=f"local[{SLOTS}]"), name="tests", shards=4, abort=Bell())
    # From here on it is the program's own, as far as engines can tell.
    _only_one.release()
    yield session
    _only_one.acquire()
    session.close(Bell())


@pytest.fixture
def engines(spark: Session) -> Engines:
    """Make engines that use the run's Spark."""

    @contextmanager
    def engine(*steps: tuple[str, dict[str, Any]], shards: int = 2, observer: Any = None, **policy: Any) -> Any:
        pipeline = Pipeline(
            name="test",
            shards=shards,
            steps=tuple(
                Step(function=function if ":" in function else f"functions:{function}", config=config)
                for function, config in steps
            ),
            # Figures come with a beat: who waits for one does not wait long. Whoever looks silent because the machine
            # stalls is left alone: tests of silence say how long they bear it.
            policy=Policy(**{"beat_seconds": 0.2, "silence_seconds": 15.0, "deaf_seconds": 20.0, **policy}),
        )
        made = Engine(pipeline, observer=observer)
        made.start()
        try:
            yield made
        finally:
            made.kill()
            assert made._status.done.wait(60)

    return engine
