import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.faults.proxied import proxied, proxy, shared_proxy  # noqa: F401 - fixtures
from tests.kept_logs import KeptLogs, Reporter
from tests.processes import ROOT, eventually, marked
from tests.property.examples import QUICK
from tests.servers import kafka_options
from thresher.core.throwaway import sweep
from thresher.devstack.shared import running_stack
from thresher.devstack.stack import Stack
from thresher.spark.driver.engine import Engine
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.session.session import Session, _only_one, open_session
from thresher.spark.session.settings import SparkOptions
from thresher.spark.signal_safe_event import SignalSafeEvent

pytest_plugins = ["thresher.devstack.fixtures", "tests.logging_state"]

# No deadline, and no check for slow generation: a stall of the machine must fail no example.
settings.register_profile("thresher", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("thresher"), max_examples=20)
settings.load_profile("quick" if QUICK else "thresher")

# The number of shards that the run's Spark can run at once.
SLOTS = 8
# The modules of every pipeline: a worker that imports them itself takes a second of a processor for it.
PRELOADED = (
    "thresher.relay.shard.steps",
    "thresher.relay.topic_lock.steps",
    "thresher.tail.shard.steps",
    "thresher.capture.shard",
    "thresher.tracker.shard",
    "thresher.delivery.transforms",
)
# The files that take minutes come first. Then come all that start servers, in random order: some compute and others
# wait, so that together they keep the processors busy. The smallest files come last: they fill the gaps at the end.
_ORDER = (
    ("test_tracker_crashes", "test_run_script", "test_relay_crash_points", "test_relay_kafka", "test_topic_locks"),
    ("crash/", "acceptance/", "integration/"),
    ("contract/", "property/"),
)

# Engines of this process, and so their local workers, import the functions under test from here.
sys.path.append(str(Path(__file__).with_name("engine")))


class OneStack(LoadFileScheduling):  # type: ignore[misc]
    """Keeps each file in one test process, and all files that use servers in the same one, which alone starts them."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "contract" if "contract/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneStack | None:
    """Distribute the tests of `./run test quick`. Xdist's own groups have no effect under pytest 9.2."""
    return OneStack(config, log) if QUICK else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first, so that the test processes end at about the same time."""

    def place(item: pytest.Item) -> int:
        return next((n for n, parts in enumerate(_ORDER) if any(part in item.nodeid for part in parts)), len(_ORDER))

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the run a temporary directory; at the end, check that it is empty and that no process of the run is left."""
    mark = str(uuid.uuid4())
    places = Path(tempfile.mkdtemp(prefix="thresher-tests-"))
    places.chmod(0o711)  # the database's account may enter
    os.environ.update(THRESHER_TEST_RUN=mark, TMPDIR=str(places))
    tempfile.tempdir = str(places)
    with KeptLogs(places, ROOT / "failures") as kept:
        request.config.pluginmanager.register(Reporter(kept))
        yield

    def strays() -> list[str]:
        # Files of killed processes are removed by the next Spark, once they are a minute old. Here none follows.
        sweep("thresher-spark-")
        # This process is not among the marked ones: the kernel shows the environment of its start.
        files = [path.name for path in places.iterdir() if path.name[:10] != "pytest-of-"]
        # The resource tracker of `multiprocessing` ends only with this process.
        return [
            command for command in marked(mark).values() if "multiprocessing.resource_tracker" not in command
        ] + files

    eventually(lambda: not strays(), 120, lambda: f"left behind: {strays()}")
    shutil.rmtree(places, ignore_errors=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The servers of the run. The broker has a user subject to ACLs, a SASL_SSL user, and a listener for a proxy."""
    with running_stack(kafka_options()) as running:
        _hash_passwords_once(running.postgres.dsn())
        yield running


def _hash_passwords_once(dsn: str) -> None:
    """Authenticate with one iteration of a hash: 4,096 take half the processor time of a new connection."""
    password = conninfo_to_dict(dsn)["password"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET scram_iterations = 1")
        connection.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(password))


Engines = Callable[..., AbstractContextManager[Engine]]


@pytest.fixture(scope="session")
def spark() -> Iterator[Session]:
    """One local Spark for the whole run."""
    options = SparkOptions(master=f"local[{SLOTS}]", preload=PRELOADED)
    session = open_session(options, name="tests", shards=4, abort=SignalSafeEvent())
    # To engines, the session now looks like one that the program itself has opened.
    _only_one.release()
    yield session
    _only_one.acquire()
    session.close(SignalSafeEvent())


@pytest.fixture
def engines(spark: Session) -> Engines:
    """Return a function that makes engines on the run's Spark."""

    @contextmanager
    def engine(*steps: tuple[str, dict[str, Any]], shards: int = 2, observer: Any = None, **policy: Any) -> Any:
        pipeline = Pipeline(
            name="test",
            shards=shards,
            steps=tuple(
                Step(function=function if ":" in function else f"functions:{function}", config=config)
                for function, config in steps
            ),
            # Frequent heartbeats, because figures come with them. A long allowed silence, so that a stall of the
            # machine ends no task: tests of silence set their own.
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
