"""Every key of every configuration that can hold a secret, through everything that shows a configuration."""

import ast
import copy
import dataclasses
import io
import json
import logging
import logging.handlers
import pickle
import traceback
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import thresher
from tests.in_process import thresher_text
from thresher.archive.run import ArchiveJob
from thresher.archive.target import TO_TABLE
from thresher.capture.configuration import CaptureForm, load_capture_config
from thresher.capture.publishing import EntityPublisher
from thresher.capture.settings import CaptureSettings
from thresher.config.form import Form
from thresher.config.kafka_properties import brokers_of
from thresher.config.problem import ConfigurationInvalid
from thresher.config.setting import settings_of
from thresher.core.errors import InvalidInput
from thresher.core.secrets import Secret, SecretMasked, carried, is_secret, revealed, revealed_properties
from thresher.db import TableName
from thresher.db.postgres.dsn import kept_dsn
from thresher.db.postgres.sessions import connect
from thresher.db.problem import DatabaseLost
from thresher.harvest.configuration import load
from thresher.harvest.form import RelayForm
from thresher.kafka.property import PROPERTIES
from thresher.observe.logs import JsonFormatter, TextFormatter
from thresher.publisher.kafka_backend import KafkaBackend
from thresher.queue.aio.producer import room_for_sends
from thresher.queue.configuration import QueueConfig, configured, load_queue_config
from thresher.relay.reading.pending_rows import largest_row
from thresher.relay.settings import Settings
from thresher.spark.session.settings import SparkOptions
from thresher.tail.configuration import TailForm, load_tail_config
from thresher.tail.settings import TailSettings
from thresher.tracker.configuration import TrackerForm, load_tracker_config
from thresher.tracker.settings import TrackerSettings

# With characters that URLs, JSON and shells escape.
SECRET = "hunter2 §é/%\\'&"
SEEN = ("hunter2", b"hunter2".hex())
OF_DATABASE = {"name": "orders", "data_source": "host=db dbname=shop", "kafka": {"bootstrap.servers": "k:1"}}
OF_QUEUES = {"bootstrap-servers": "k:1", "message-topic": "m", "marker-topic": "n"}
FORMS: dict[str, tuple[type[Form], Callable[..., Any], dict[str, Any]]] = {
    "relay": (RelayForm, load, OF_DATABASE),
    "tail": (TailForm, load_tail_config, OF_DATABASE),
    "capture": (CaptureForm, load_capture_config, {**OF_DATABASE, "topics": {"t": {"handler": "builtins:print"}}}),
    "queue": (QueueConfig, load_queue_config, OF_QUEUES),
    "tracker": (TrackerForm, load_tracker_config, OF_QUEUES),
}
OF_SPARK = (
    "spark.ssl.keyPassword",
    "spark.ssl.keyStorePassword",
    "spark.authenticate.secret",
    "spark.hadoop.x.secret.key",
)


QUOTED = urllib.parse.quote(SECRET, safe="")
# Each way in which a connection string holds a password; the last one cannot be right.
DSNS = (
    f"host=db dbname=shop password='{SECRET.replace(chr(92), '').replace(chr(39), '')}'",
    "host=db dbname=shop sslmode=verify-full sslpassword=hunter2",
    "service=orders password=hunter2",
    f"postgresql://u:{QUOTED}@db/shop",
    f"postgresql://db/shop?user=u&password={QUOTED}",
    f"postgresql://u:hunter2@db/{SECRET}",
)


def with_secrets(form: type[Form], document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield documents with a secret in one place each."""
    for setting in settings_of(form):
        key = setting.key
        if setting.secret is not None:
            for dsn in DSNS:
                yield key, {**document, key: dsn}
        if setting.section is not None:
            names = [name for name in PROPERTIES if is_secret(name)] if setting.section.of_kafka_client else OF_SPARK
            for name in names:
                yield f"{key}.{name}", {**document, key: {**document.get(key, {}), name: SECRET}}
        if key == "redelivery-tracker":
            yield f"{key}.spark", {**document, key: {"spark": dict.fromkeys(OF_SPARK, SECRET)}}
        # A secret where none belongs, such as a password that slipped by a line.
        yield f"{key} itself", {**document, key: {"password": SECRET}}


def shown(loaded: Any, key: str) -> Iterator[str]:
    """Yield each text that a program, a page or a log could make of a configuration, and of one of its keys."""
    parts = [
        loaded,
        *(getattr(loaded, name, None) for name in ("form", "settings", "completed", "secrets", "election", "spark")),
    ]
    completed = getattr(loaded, "completed", loaded)
    yield json.dumps(dict(completed.shown))
    for part in parts:
        yield from texts_of(part)
        # What a program reads back from it.
        yield from texts_of(getattr(part, key, None))


def texts_of(part: Any) -> Iterator[str]:
    """Yield what printing, JSON, pickles and logs make of a value."""
    yield from (repr(part), str(part), f"{part}", f"{part!s:>200}", "%s %r" % (part, part))  # noqa: UP031
    yield repr(copy.deepcopy(part) if not hasattr(part, "model_dump") else part.model_dump())
    yield json.dumps(part, default=str)
    if hasattr(part, "model_dump_json"):
        yield part.model_dump_json()
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        yield repr(dataclasses.asdict(part))
    for formatter in (TextFormatter(), JsonFormatter()):
        stream = io.StringIO()
        logger, handler = logging.Logger("secrets"), logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        logger.addHandler(handler)
        logger.error("it has %s, %r", part, part, extra={"part": part, "parts": [part]})
        yield stream.getvalue()
    # As handlers send records to other processes and machines.
    record = logging.makeLogRecord({"msg": "it has %s", "args": (part,), "part": part, "parts": [part]})
    try:
        sent = logging.handlers.SocketHandler("localhost", 0).makePickle(record)
    except (TypeError, AttributeError, pickle.PicklingError):
        return
    yield repr(sent)


@pytest.mark.parametrize("name", FORMS)
def test_no_secret_of_any_key_is_shown_anywhere(name: str, tmp_path: Path) -> None:
    form, read, document = FORMS[name]
    accepted, path = Counter[str](), tmp_path / "c.yaml"
    for place, given in with_secrets(form, document):
        path.write_text(yaml.safe_dump(given, allow_unicode=True))
        try:
            loaded = read(path, {}, {})
        except ConfigurationInvalid as refused:
            texts = [str(refused), repr(refused), repr(refused.problems)]
        else:
            accepted[place] += 1
            texts = [*shown(loaded, place.partition(".")[0].replace("-", "_"))]
        for text in texts:
            assert not [each for each in SEEN if each in text], f"{place}: {text[:2000]}"
    # What a form accepts is shown: a key that is refused proves only what errors show.
    of_client = [setting.key for setting in settings_of(form) if setting.section and setting.section.of_kafka_client]
    assert len(of_client) > 1
    assert {f"{key}.{name}" for key in of_client for name in PROPERTIES if is_secret(name)} <= accepted.keys()
    assert {f"spark.{name}" for name in OF_SPARK} <= accepted.keys() or name == "queue"
    assert "data_source" not in document or accepted["data_source"] == len(DSNS) - 1


@pytest.mark.parametrize("name", [name for name, (_, _, document) in FORMS.items() if document is OF_DATABASE])
@pytest.mark.parametrize("dsn", DSNS)
def test_no_secret_is_shown_whichever_way_it_comes(name: str, dsn: str, tmp_path: Path) -> None:
    _, read, document = FORMS[name]
    held, path = tmp_path / "held", tmp_path / "c.yaml"
    held.write_text(dsn)
    by_file = {"kafka": {"bootstrap.servers": "k:1", "sasl.username": {"file": str(tmp_path / "user")}}}
    (tmp_path / "user").write_text("hunter2\n")
    ways: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, str]], ...] = (
        ({}, {"data_source": dsn}, {}),
        ({}, {}, {"THRESHER_DS": dsn}),
        ({}, {}, {"THRESHER_DS_FILE": str(held)}),
        ({"data_source": {"file": str(held)}}, {}, {}),
    )
    for in_file, flags, variables in ways:
        given = {key: value for key, value in document.items() if key != "data_source"}
        path.write_text(yaml.safe_dump({**given, **by_file, **in_file}))
        try:
            loaded = read(path, flags, variables)
        except ConfigurationInvalid as refused:
            accepted, texts = False, [str(refused), repr(refused), repr(refused.problems)]
        else:
            accepted, texts = True, [*shown(loaded, "data_source"), *shown(loaded, "kafka")]
        assert accepted == (dsn is not DSNS[-1]), texts[0]
        for text in texts:
            assert not [each for each in SEEN if each in text], text[:2000]


@pytest.mark.parametrize("dsn", DSNS)
def test_no_secret_of_a_goharvest_file_is_shown(dsn: str, tmp_path: Path) -> None:
    kafka = {"bootstrap.servers": "k:1", "sasl.password": SECRET}
    keys = {"leaderGroupID": "o", "dataSource": dsn, "baseKafkaConfig": kafka}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"harvest": keys}, allow_unicode=True))
    try:
        loaded = load(path, {}, {})
    except ConfigurationInvalid as refused:
        accepted, texts = False, [str(refused), repr(refused), repr(refused.problems)]
    else:
        accepted, texts = True, [*shown(loaded, "data_source"), *shown(loaded, "kafka")]
    assert accepted == (dsn is not DSNS[-1]), texts[0]
    for text in texts:
        assert not [each for each in SEEN if each in text], text[:2000]


@pytest.mark.parametrize("name", ["relay", "tail", "capture", "queue"])
def test_no_command_about_a_configuration_shows_a_secret(name: str, tmp_path: Path) -> None:
    _, _, document = FORMS[name]
    path = tmp_path / "c.yaml"
    secrets = {each: SECRET for each in PROPERTIES if is_secret(each)}
    given = {**document, "kafka": {**document.get("kafka", {}), **secrets}}
    if "data_source" in document:
        given |= {"data_source": DSNS[0], "spark": dict.fromkeys(OF_SPARK, SECRET)}
    for wrong in ({}, {"kafka": {**given["kafka"], "sasl.pasword": SECRET}}):
        path.write_text(yaml.safe_dump({**given, **wrong}))
        for words in (f"check --pipeline {name}", f"check --json --pipeline {name}", "print", "print --json"):
            done = thresher_text(
                "config", *words.split(), "-c", str(path), without=["THRESHER_DS", "THRESHER_BOOTSTRAP"]
            )
            told = done.stdout + done.stderr
            assert not [each for each in SEEN if each in told], told
            assert (done.returncode == 0) != bool(wrong) or (words.startswith("print") and name != "relay"), told


NAMES = [name for name in PROPERTIES if is_secret(name)]
DSN = "host=db user=u dbname=shop password=hunter2"
URL = "postgresql://u:hunter2@db/shop"
TABLE = TableName(table="outbox")
# How a program gives settings: a class, what it needs, and where it may hold connection strings and properties.
PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "relay": (Settings, {"name": "o", "dsn": "host=db"}, ("data_source", "dsn"), ("kafka", "producer")),
    "tail": (TailSettings, {"name": "o", "dsn": "", "outbox": TABLE, "kafka": {}}, ("dsn",), ("kafka", "producer")),
    "capture": (
        CaptureSettings,
        {"name": "o", "dsn": "", "kafka": {}, "mappings": ()},
        ("dsn",),
        ("kafka", "consumer"),
    ),
    "tracker": (
        TrackerSettings,
        {"message_topic": "m", "marker_topic": "n", "dead_topic": "d", "kafka": {}},
        (),
        ("kafka", "producer", "consumer"),
    ),
    "queue": (
        lambda **given: configured({**OF_QUEUES, **given}),
        {},
        (),
        ("kafka", "producer", "consumer"),
    ),
    "spark": (SparkOptions, {}, (), ("conf",)),
    "archive": (
        lambda **given: ArchiveJob(outbox=TABLE, target=TO_TABLE, older_than_seconds=1.0, **given),
        {"dsn": ""},
        ("dsn",),
        (),
    ),
}


def checked(make: Callable[[], Any]) -> Any:
    """Return what is made, or None if it is refused, without a secret."""
    try:
        return make()
    except ConfigurationInvalid as refused:
        told = f"{refused} {refused!r} {refused.problems}"
    assert "hunter2" not in told
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_reads_back_from_its_settings_is_masked(name: str) -> None:
    make, least, of_databases, of_clients = PROGRAMS[name]
    given: list[tuple[str, Any, str]] = [
        (key, dsn, dsn) for key in of_databases for dsn in (DSN, URL, "host=db hunter2")
    ]
    given += [(key, {each: "hunter2"}, "hunter2") for key in of_clients for each in (*NAMES, *OF_SPARK)]
    given += [(key, {"plugin.url": "http://u:hunter2@db/"}, "http://u:hunter2@db/") for key in of_clients]
    for key, value, content in given:
        without = {each: kept for each, kept in least.items() if {each, key} != {"dsn", "data_source"}}
        made = checked(partial(make, **{**without, key: value}))
        if made is None:
            continue
        held = getattr(made, key)
        (kept,) = (each for each in held.values() if each == content) if isinstance(held, Mapping) else (held,)
        assert isinstance(kept, Secret), (key, value)
        assert revealed(kept) == content, "the client gets what was given"
        for text in (*texts_of(made), *texts_of(held), *texts_of(kept), *texts_of([kept]), *texts_of({"a": kept})):
            assert not [each for each in SEEN if each in text], f"{key} {value}: {text[:2000]}"


def test_a_secret_crosses_to_a_task_only_if_it_is_carried() -> None:
    settings = TailSettings(name="o", dsn=DSN, outbox=TABLE, kafka={"sasl.password": "hunter2"})
    assert pickle.loads(carried(settings)) == settings  # noqa: S301 - of our own making
    arrived = pickle.loads(pickle.dumps(settings))  # noqa: S301 - of our own making
    assert "hunter2" not in repr(arrived)
    with pytest.raises(SecretMasked, match="carried"):
        arrived.dsn.reveal()
    with pytest.raises(SecretMasked):
        revealed_properties(arrived.kafka)


def test_what_thresher_reads_of_a_clients_properties_may_be_in_a_file(tmp_path: Path) -> None:
    for name, content in (("servers", "k:1\n"), ("bytes", "70000000\n"), ("messages", "50\n")):
        (tmp_path / name).write_text(content)
    kafka = {"bootstrap.servers": {"file": f"{tmp_path}/servers"}, "message.max.bytes": {"file": f"{tmp_path}/bytes"}}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**OF_DATABASE, "kafka": kafka}))
    settings = load(path, {}, {}).settings
    assert brokers_of(settings.kafka) == frozenset({"k:1"})
    assert largest_row(settings) == 70_000_000
    sends = {"queue.buffering.max.messages": {"file": f"{tmp_path}/messages"}}
    path.write_text(yaml.safe_dump({**OF_QUEUES, "producer": sends}))
    assert room_for_sends(load_queue_config(path, {}, {}).form) == 25


def test_a_client_without_its_server_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    dsn = kept_dsn("host=127.0.0.1 port=1 user=u dbname=shop password=hunter2 sslpassword=hunter2 connect_timeout=2")
    with pytest.raises(DatabaseLost) as lost:
        connect(dsn, "test")
    told = ["".join(traceback.format_exception(lost.value)), repr(lost.value), repr(lost.value.__cause__)]
    # A property with a wrong value: the client repeats it, and it may be a password in a wrong line.
    for make in (KafkaBackend({"security.protocol": SECRET}, waits=True).check, partial(entities, SECRET)):
        with pytest.raises(InvalidInput) as refused:
            make()
        assert "security.protocol" in str(refused.value)
        told += [str(refused.value), repr(refused.value)]
    for text in (*told, caplog.text):
        assert not [each for each in SEEN if each in text], text


def entities(wrong: str) -> object:
    return EntityPublisher({"security.protocol": wrong}, DSN, capture="c")


def test_every_client_gets_the_contents_of_secrets() -> None:
    """A `Secret` among its properties would be `***` for a client of Kafka, without a word."""
    clients, wrong = 0, []
    for path in Path(thresher.__file__).parent.rglob("*.py"):
        if {"testing", "devstack"} & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "confluent_kafka" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Producer", "Consumer", "AdminClient"}:
                clients += 1
                given = ast.unparse(node.args[0])
                if not given.startswith(("revealed_properties(", "asked", "{name: value, _NO_PROPERTY")):
                    wrong.append(f"{path.name}:{node.lineno}: {given}")
    assert not wrong
    assert clients > 10
