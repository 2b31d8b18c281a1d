"""Every key of every configuration that can hold a secret, through everything that shows a configuration."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from thresher.capture.configuration import CaptureForm, load_capture_config
from thresher.config.form import Form
from thresher.config.problem import ConfigurationInvalid
from thresher.config.setting import settings_of
from thresher.core.secrets import is_secret, mask_logs
from thresher.harvest.configuration import load
from thresher.harvest.form import RelayForm
from thresher.kafka.property import PROPERTIES
from thresher.observe.logs import JsonFormatter, TextFormatter
from thresher.queue.configuration import QueueConfig, load_queue_config
from thresher.tail.configuration import TailForm, load_tail_config
from thresher.tracker.configuration import TrackerForm, load_tracker_config

# With characters that URLs, JSON and shells escape.
SECRET = "hunter2 §é/%\\'&"
SEEN = ("hunter2", b"hunter2".hex())
OF_DATABASE = {"name": "orders", "data_source": "host=db dbname=shop", "kafka": {"bootstrap.servers": "k:1"}}
OF_QUEUES = {"bootstrap-servers": "k:1", "message-topic": "m", "marker-topic": "n"}
FORMS: dict[str, tuple[type[Form], Callable[..., Any], dict[str, Any]]] = {
    "relay": (RelayForm, load, OF_DATABASE),
    "tail": (TailForm, load_tail_config, OF_DATABASE),
    "capture": (CaptureForm, load_capture_config, {**OF_DATABASE, "topics": {"t": {"handler": "m:f"}}}),
    "queue": (QueueConfig, load_queue_config, OF_QUEUES),
    "tracker": (TrackerForm, load_tracker_config, OF_QUEUES),
}
OF_SPARK = (
    "spark.ssl.keyPassword",
    "spark.ssl.keyStorePassword",
    "spark.authenticate.secret",
    "spark.hadoop.x.secret.key",
)


def with_secrets(form: type[Form], document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield documents with a secret in one place each."""
    for setting in settings_of(form):
        key = setting.key
        if setting.secret is not None:
            for dsn in (
                f"host=db dbname=shop password='{SECRET.replace(chr(92), '').replace(chr(39), '')}'",
                f"postgresql://u:hunter2@db/{SECRET}",
            ):
                yield key, {**document, key: dsn}
        if setting.section is not None:
            names = [name for name in PROPERTIES if is_secret(name)] if setting.section.of_kafka_client else OF_SPARK
            for name in names:
                yield f"{key}.{name}", {**document, key: {**document.get(key, {}), name: SECRET}}
        # A secret where none belongs, such as a password that slipped by a line.
        yield f"{key} itself", {**document, key: {"password": SECRET}}


def shown(loaded: Any) -> Iterator[str]:
    """Yield each text that a program, a page or a log could make of a configuration."""
    parts = [
        loaded,
        *(getattr(loaded, name, None) for name in ("form", "settings", "completed", "secrets", "election", "spark")),
    ]
    completed = getattr(loaded, "completed", loaded)
    secrets, page = completed.secrets, completed.shown
    yield json.dumps(dict(page))
    for part in parts:
        yield from (repr(part), str(part), f"{part}")
        for formatter in (TextFormatter(), JsonFormatter()):
            stream = io.StringIO()
            logger, handler = logging.Logger("secrets"), logging.StreamHandler(stream)
            handler.setFormatter(formatter)
            logger.addHandler(handler)
            mask_logs(secrets, logger)
            logger.error("it has %s, %r", part, part, extra={"part": part, "parts": [part]})
            yield stream.getvalue()


@pytest.mark.parametrize("name", FORMS)
def test_no_secret_of_any_key_is_shown_anywhere(name: str, tmp_path: Path) -> None:
    form, read, document = FORMS[name]
    accepted, path = 0, tmp_path / "c.yaml"
    for place, given in with_secrets(form, document):
        path.write_text(yaml.safe_dump(given, allow_unicode=True))
        try:
            loaded = read(path, {}, {})
        except ConfigurationInvalid as refused:
            texts = [str(refused), repr(refused), repr(refused.problems)]
        else:
            accepted += 1
            texts = [*shown(loaded)]
        for text in texts:
            assert not [each for each in SEEN if each in text], f"{place}: {text[:2000]}"
    assert accepted > 5, "the walk reached few keys"
