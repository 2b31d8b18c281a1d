"""No object that a program makes holds a secret as a plain text, which a debugger, a dump or `vars` would show."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import psycopg
import pytest

from thresher.archive.archiver import Archiver
from thresher.archive.run import ArchiveJob
from thresher.archive.target import TO_TABLE
from thresher.capture.capture import Capture
from thresher.capture.publishing import EntityPublisher
from thresher.core.secrets import Secret, Secrets
from thresher.db import TableName
from thresher.election.lease import Lease
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.publisher.dispatcher import Dispatcher
from thresher.publisher.kafka_backend import KafkaBackend
from thresher.publisher.publisher import Publisher
from thresher.relay.settings import Settings
from thresher.relay.topic_lock.backend import DbBackend
from thresher.tail.settings import TailSettings
from thresher.tail.tail import Tail
from thresher.tracker.tracker import Tracker

TABLE = TableName(table="outbox")


def plain(root: Any) -> Iterator[str]:
    """Yield where an object, or what it holds, has a secret as a plain text. What masks other texts has to."""
    seen, left = set(), [(type(root).__name__, root)]
    while left:
        where, value = left.pop()
        if id(value) in seen or isinstance(value, Secret | Secrets | ModuleType | FunctionType | type):
            continue
        seen.add(id(value))
        match value:
            case str() | bytes():
                if "hunter2" in (value if isinstance(value, str) else value.decode("latin-1")):
                    yield where
            case Mapping():
                left += [(f"{where}[{key!r}]", each) for key, each in value.items()]
            case list() | tuple() | set() | frozenset():
                left += [(f"{where}[]", each) for each in value]
            case partial():
                left.append((f"{where} of", (value.func, value.args, value.keywords)))
            case MethodType():
                left.append((f"{where} of", value.__self__))
            case _:
                slots = (getattr(each, "__slots__", ()) for each in type(value).__mro__)
                names = {name for each in slots for name in ([each] if isinstance(each, str) else each)}
                held = {name: getattr(value, name, None) for name in names} | _attributes(value)
                left += [(f"{where}.{name}", each) for name, each in held.items()]


def _attributes(value: Any) -> dict[str, Any]:
    return dict(getattr(value, "__dict__", {}))


UNSERVED = {"sasl.password": "hunter2"}
OF_KAFKA = {"bootstrap.servers": "127.0.0.1:1", **UNSERVED}
OF_QUEUES = {"bootstrap-servers": "127.0.0.1:1", "message-topic": "m", "marker-topic": "n", "kafka": UNSERVED}
LOCAL = "host=127.0.0.1 port=1 user=u dbname=shop password=hunter2"
# What a program makes to work with: nothing listens there, and nothing is started.
OBJECTS: dict[str, Callable[[], Any]] = {
    **{
        f"relay, {kind}": partial(
            lambda kind: Harvest(
                Settings(name="o", data_source=LOCAL, kafka=OF_KAFKA), election=ElectionSettings(kind=kind)
            ),
            kind,
        )
        for kind in ElectionKind
    },
    "topic locks": lambda: DbBackend(Settings(name="o", data_source=LOCAL, kafka=OF_KAFKA)),
    "tail": lambda: Tail(TailSettings(name="o", dsn=LOCAL, outbox=TABLE, kafka=OF_KAFKA)),
    "capture": lambda: Capture(
        {"name": "o", "data_source": LOCAL, "kafka": OF_KAFKA, "topics": {"t": {"handler": "builtins:print"}}}
    ),
    "tracker": lambda: Tracker(
        {"bootstrap-servers": "127.0.0.1:1", "message-topic": "m", "marker-topic": "n", "kafka": UNSERVED}
    ),
    "publisher": lambda: Publisher(kafka=OF_KAFKA),
    "its backend": lambda: KafkaBackend(OF_KAFKA, waits=True),
    "dispatcher": lambda: Dispatcher(lambda: psycopg.connect(LOCAL), kafka=OF_KAFKA),
    "entities": lambda: EntityPublisher(OF_KAFKA, LOCAL, capture="c"),
    "lease": lambda: Lease(dsn=LOCAL, name="o"),
    "archiver": lambda: Archiver(ArchiveJob(dsn=LOCAL, outbox=TABLE, target=TO_TABLE, older_than_seconds=1.0)),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_no_object_of_a_program_holds_a_secret_as_a_plain_text(name: str) -> None:
    made = OBJECTS[name]()
    assert [*plain(made)] == []
    assert "hunter2" not in f"{made!r} {made} {_attributes(made)}"
