"""Running relays, tails, captures and trackers show no secret: on their pages, in logs and events, up and refused."""

import json
import logging
import logging.handlers
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from tests.capture.captured import ALONE, CapturedOrders
from tests.processes import eventually
from tests.queue.topics import QueueTopics
from tests.relay.relaying import POLICY, Place
from tests.tail.tailing import TailPlace
from thresher.capture.capture import Capture
from thresher.core.errors import ThresherError
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.kafka.property import PROPERTIES
from thresher.observe.logs import JsonFormatter, TextFormatter
from thresher.observe.server import Server
from thresher.outbox import Message
from thresher.service.pages import StatusPages
from thresher.service.service import Service
from thresher.spark.session.session import Session
from thresher.tail.tail import Tail
from thresher.tracker.tracker import Tracker

PATIENCE_SECONDS = 90.0
# The client accepts these, and does not use them without TLS.
UNUSED = dict.fromkeys(("ssl.key.password", "sasl.password", "ssl.keystore.password"), "hunter2")
assert set(UNUSED) <= set(PROPERTIES)
NONE = ElectionSettings(kind=ElectionKind.NONE)
Made = tuple[Service, Callable[[], bool]]


class Kept(logging.Handler):
    """Keeps the lines of records in both formats, and what a handler would send of them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts += [TextFormatter().format(record), JsonFormatter().format(record), repr(vars(record))]
        with suppress(TypeError):
            self.texts.append(repr(logging.handlers.SocketHandler("localhost", 0).makePickle(record)))


@pytest.fixture
def relay(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Callable[..., Made]:
    place = Place(stack, dsn, topic_prefix)

    def made(dsn: str = dsn, **given: Any) -> Made:
        kafka = {"bootstrap.servers": stack.kafka.bootstrap, **UNUSED}
        harvest = Harvest(place.settings(shards=1, dsn=dsn, kafka=kafka), policy=POLICY, election=NONE, **given)
        place.stash(Message(topic=place.topic, key="a", value="b"))
        return harvest, lambda: harvest.relayed > 0

    return made


@pytest.fixture
def tail(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Iterator[Callable[..., Made]]:
    place = TailPlace(stack, dsn, topic_prefix)

    def made(dsn: str = dsn, **given: Any) -> Made:
        settings = place.settings(dsn=dsn, kafka={"bootstrap.servers": stack.kafka.bootstrap, **UNUSED})
        service = Tail(settings, policy=POLICY, election=NONE, **given)
        place.stash(Message(topic=place.topic, key="a", value="b"))
        return service, lambda: service.relayed > 0

    yield made
    place.drop_slot()


@pytest.fixture
def capture(stack: Stack, spark: Session, dsn: str) -> Callable[..., Made]:
    orders = CapturedOrders(stack.kafka.bootstrap, dsn)

    def made(dsn: str = dsn, **given: Any) -> Made:
        kafka = {"bootstrap.servers": stack.kafka.bootstrap, **UNUSED}
        service = Capture({**orders.keys, "data_source": dsn, "kafka": kafka}, **given)
        orders.publish(("a", 1))
        return service, lambda: service.captured > 0

    return made


@pytest.fixture
def tracker(stack: Stack, spark: Session, dsn: str) -> Callable[..., Made]:
    topics = QueueTopics(stack.kafka.bootstrap)

    def made(dsn: str = dsn, **given: Any) -> Made:
        keys = topics.config.model_dump(by_alias=True, exclude_unset=True)
        service = Tracker({**keys, "kafka": UNUSED, "redelivery-tracker": ALONE}, **given)
        return (
            service,
            lambda: (
                (found := service.snapshot()) is not None
                and any(shard.gauges.get("tracking") for shard in found.shards)
            ),
        )

    return made


def pages_of(service: Service) -> Iterator[str]:
    with closing(StatusPages(service)) as board, Server("127.0.0.1", 0, board.pages) as server:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for path in (*board.pages, "/", "/nowhere"):
            try:
                with opener.open(f"http://127.0.0.1:{server.port}{path}", timeout=60) as answer:
                    yield answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    yield error.read().decode()


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        *((kind, False) for kind in ("relay", "tail", "capture", "tracker")),
        ("relay", True),
        ("tail", True),
        ("capture", True),
    ],
)
def test_no_page_log_or_event_shows_a_secret(
    kind: str, refused: bool, dsn: str, request: pytest.FixtureRequest
) -> None:
    make: Callable[..., Made] = request.getfixturevalue(kind)
    secrets = [psycopg.conninfo.conninfo_to_dict(dsn)["password"], "hunter2"]
    logger, kept, told = logging.Logger("program", logging.DEBUG), Kept(), list[str]()
    logger.addHandler(kept)
    wrong = psycopg.conninfo.make_conninfo(dsn, password="hunter2")
    service, done = make(wrong if refused else dsn, logger=logger)
    service.on_event(lambda event: told.append(f"{event!r} {event} {json.dumps(event, default=repr)}"))
    service.start()
    try:
        if refused:
            ended = lambda: service.state != "running" or service.waiting_for or service.trouble  # noqa: E731
            eventually(ended, PATIENCE_SECONDS)
        else:
            eventually(done, PATIENCE_SECONDS)
        told += pages_of(service)
        told.append(repr(service.alarms))
    finally:
        with suppress(ThresherError):
            service.stop()
        try:
            service.wait(1)
        except ThresherError as error:
            told += [repr(error), str(error)]
    told += [*kept.texts, repr(service), repr(vars(service)), repr(vars(service.workload))]
    assert kept.texts
    for text in told:
        for secret in secrets:
            assert str(secret) not in text, text[:2000]
