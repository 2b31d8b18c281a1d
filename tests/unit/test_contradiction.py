"""An environment that names other servers than the file is refused, for every pipeline and client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from thresher.capture.configuration import load_capture_config
from thresher.config.problem import ConfigurationInvalid
from thresher.db.postgres.dsn import databases_of
from thresher.harvest.configuration import load
from thresher.queue.configuration import load_queue_config
from thresher.tail.configuration import load_tail_config
from thresher.tracker.configuration import load_tracker_config

BASE = {
    "name": "orders",
    "kafka": {"bootstrap.servers": "k1:9092,k2:9092"},
    "data_source": "postgresql://r:hunter2@db/shop",
}
QUEUES = {"bootstrap-servers": "k1:9092,k2:9092", "message-topic": "m", "marker-topic": "n"}
HARVEST = {"harvest": {"leaderGroupID": "x", "dataSource": "host=db dbname=shop", "baseKafkaConfig": BASE["kafka"]}}
FORMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "relay": (load, BASE),
    "goharvest": (load, HARVEST),
    "tail": (load_tail_config, BASE),
    "capture": (load_capture_config, {**BASE, "topics": {"t": {"handler": "m:f"}}}),
    "queue": (load_queue_config, QUEUES),
    "tracker": (load_tracker_config, QUEUES),
}
OF_DATABASE = ["relay", "goharvest", "tail", "capture"]


def loaded(path: Path, form: str, flags: dict[str, Any], **environment: str) -> str:
    """Return the problems of a configuration."""
    read, document = FORMS[form]
    (path / "c.yaml").write_text(yaml.safe_dump(document))
    try:
        read(path / "c.yaml", flags, environment)
    except ConfigurationInvalid as refused:
        problems = str(refused)
    else:
        problems = ""
    assert "hunter" not in problems
    return problems


@pytest.mark.parametrize("form", OF_DATABASE)
@pytest.mark.parametrize(
    "variable", ["THRESHER_DS", "THRESHER_DATA_SOURCE", "THRESHER_DS_FILE", "THRESHER_DATA_SOURCE_FILE"]
)
def test_another_database_in_the_environment_is_refused_with_both_named(
    tmp_path: Path, form: str, variable: str
) -> None:
    dsn = "postgresql://r:hunter3@localhost:5433/other"
    (tmp_path / "dsn").write_text(dsn)
    value = str(tmp_path / "dsn") if variable.endswith("_FILE") else dsn
    problems = loaded(tmp_path, form, {}, **{variable: value})
    assert "the file names db:5432/shop, and the environment names localhost:5433/other: unset THRESHER_DS" in problems


@pytest.mark.parametrize("form", FORMS)
def test_another_broker_in_the_environment_is_refused_with_both_named(tmp_path: Path, form: str) -> None:
    variable = "THRESHER_BOOTSTRAP_SERVERS" if form in {"queue", "tracker"} else "THRESHER_BOOTSTRAP"
    problems = loaded(tmp_path, form, {}, **{variable: "localhost:9092"})
    assert f"names k1:9092, k2:9092, and the environment names localhost:9092: unset {variable}" in problems
    assert not loaded(tmp_path, form, {}, **{variable: "k2:9092,k3:9092"})


@pytest.mark.parametrize("form", OF_DATABASE)
def test_the_same_database_and_a_flag_are_no_contradiction(tmp_path: Path, form: str) -> None:
    for same in ("postgresql://someone:hunter3@DB:5432/shop?sslmode=require", "host=standby,db dbname=shop user=x"):
        assert not loaded(tmp_path, form, {}, THRESHER_DS=same)
    flags = {"data_source": "host=third dbname=x"}
    assert not loaded(tmp_path, form, flags, THRESHER_DS="host=other dbname=shop")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without variables of libpq."""
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE", "PGSERVICEFILE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("dsn", "databases"),
    [
        ("postgresql://u:p@/shop", {"localhost:5432/shop"}),
        ("host=127.0.0.1 user=u", {"localhost:5432/u"}),
        ("postgresql://u:p@a:1,B:2/shop", {"a:1/shop", "b:2/shop"}),
        ("host=a,b port=7 dbname=shop", {"a:7/shop", "b:7/shop"}),
        ("host=a,b hostaddr=10.0.0.1,10.0.0.2 dbname=shop", {"a (10.0.0.1):5432/shop", "b (10.0.0.2):5432/shop"}),
        ("hostaddr=127.0.0.1 dbname=shop", {"localhost:5432/shop"}),
        ("host=localhost hostaddr=127.0.0.1 dbname=shop", {"localhost:5432/shop"}),
        ("service=orders password=hunter2", {"service orders"}),
        ("service=orders dbname=other user=u", {"service orders dbname=other"}),
        ("postgresql://u:p@ss@db/shop", set()),
        ("nonsense", set()),
    ],
)
@pytest.mark.usefixtures("bare")
def test_a_database_is_known_by_host_port_and_name(dsn: str, databases: set[str]) -> None:
    assert databases_of(dsn) == databases


def test_what_libpq_adds_to_a_connection_string_is_named(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "services").write_text("[orders]\nhost=db.orders\nport=7\ndbname=orders\n")
    bare.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    bare.setenv("PGSERVICE", "orders")
    assert databases_of("user=u") == {"db.orders:7/orders"}
    assert databases_of("host=db dbname=shop") == {"db:7/shop"}
    bare.delenv("PGSERVICE")
    bare.setenv("PGHOSTADDR", "10.0.0.9")
    assert databases_of("dbname=shop") == {"10.0.0.9:5432/shop"}


@pytest.mark.parametrize("form", OF_DATABASE)
def test_an_address_of_the_environment_does_not_overrule_the_host(
    bare: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    bare.setenv("PGHOSTADDR", "127.0.0.1")
    assert "PGHOSTADDR" in loaded(tmp_path, form, {})
    assert "PGHOSTADDR" in loaded(tmp_path, form, {"data_source": "service=orders"})
    assert not loaded(tmp_path, form, {"data_source": "host=db hostaddr=10.0.0.9 dbname=shop"})
    (tmp_path / "services").write_text("[orders]\nhostaddr=127.0.0.1\n")
    bare.delenv("PGHOSTADDR")
    bare.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    bare.setenv("PGSERVICE", "orders")
    assert "PGSERVICE" in loaded(tmp_path, form, {})
