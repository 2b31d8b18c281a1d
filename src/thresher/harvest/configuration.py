"""Reads a relay's configuration: a YAML file, then the environment, then flags, each overriding the one before.

The file is in our own form, or in goharvest's, which is told in our keys first. Every problem is named in one message,
with its key, the reason and the nearest key there is, and no value of a secret; nothing is started.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thresher.config.problem import ConfigurationInvalid
from thresher.core.secrets import Secrets, Unreadable, is_secret, read_secret, secrets_in_url, shown_property
from thresher.db.postgres.dsn import secrets_of_dsn, shown_dsn
from thresher.election.settings import ElectionSettings
from thresher.harvest.document import read
from thresher.harvest.environment import from_environment
from thresher.harvest.form import KEYS, OF_ELECTION, SERVERS, Form, LogLevel, Problem, fill_in, together
from thresher.harvest.reaper import Translation, as_ours, forget_unelected, is_reapers, keep_partitions, translate
from thresher.observe.logs import LogFormat
from thresher.relay.leader.relay import POLICY
from thresher.relay.settings import Delivery, Limits, Settings
from thresher.spark.policy import Policy
from thresher.spark.session.settings import SparkOptions

logger = logging.getLogger(__name__)

_PROPERTIES = ("kafka", "producer", "spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a relay needs to know, and nothing to be asked again."""

    settings: Settings
    election: ElectionSettings
    policy: Policy
    status: tuple[str, int] | None
    # The port was not chosen by anybody: another one will do.
    status_by_default: bool
    spark: SparkOptions
    # How often a meter is read.
    metrics_seconds: float
    log_format: LogFormat
    log_level: LogLevel
    # What logs and errors must not show.
    secrets: Secrets
    # All of it in our own form, for people: secrets are masked.
    shown: Mapping[str, Any] = field(repr=False)


def load(
    path: Path | None,
    overrides: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    *,
    warn: Callable[[str], object] = logger.warning,
    otherwise: Callable[[], Mapping[str, Any]] = dict,
) -> Configuration:
    """Read and check a configuration. `overrides` holds what flags say, None where they are silent.

    `warn` is told, once for each, of keys that are accepted without effect; `otherwise` is asked for database and
    broker where there is no file, and nothing else names either. Raises `ConfigurationInvalid` with every problem.
    """
    found = read(path) if path is not None else {}
    told = translate(found) if is_reapers(found) else as_ours(found)
    said = from_environment(environment or {})
    given: dict[str, Any] = {key: value for key, value in told.keys.items() if value is not None}
    for layer in (said.keys, overrides):
        _lay_over(given, layer)
    if path is None and not _says_where(given):
        _lay_over(given, otherwise())
    if is_reapers(found):
        keep_partitions(given)
    forget_unelected(told, given)
    held = _read_files(given)
    secrets = _secrets(given, held)
    # A key that could not be read is not missed besides.
    troubled = {*(set(told.origin) - set(told.keys)), *(key.partition(".")[0] for key, _ in held.problems)}
    form, wrong = fill_in(given, troubled=troubled)
    report = [*told.problems, *said.problems, *((_as_said(key, told), why) for key, why in [*held.problems, *wrong])]
    if report:
        raise ConfigurationInvalid(secrets.mask(together(report)))
    for remark in [*told.remarks, *said.remarks, *_idle(form, given, told)]:
        warn(secrets.mask(remark))
    return _configuration(form, given, secrets, held)


def _lay_over(given: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if key in _PROPERTIES and isinstance(value, Mapping) and isinstance(given.get(key), Mapping):
            given[key] = {**given[key], **value}
        elif value is not None and value != {}:
            given[key] = value


def _says_where(given: Mapping[str, Any]) -> bool:
    kafka = given.get("kafka", {})
    return "data_source" in given or not isinstance(kafka, Mapping) or not SERVERS.isdisjoint(kafka)


@dataclass(frozen=True, slots=True)
class _Held:
    """What files were named for, by key; what they held; and which could not be read."""

    paths: dict[str, Any] = field(default_factory=dict)
    values: list[str] = field(default_factory=list, repr=False)
    problems: list[Problem] = field(default_factory=list)

    def content(self, key: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or set(value) != {"file"}:
            return value
        self.paths[key] = value["file"]
        try:
            text = read_secret(value["file"])
        except Unreadable as error:
            self.problems.append((key, str(error)))
            return ""
        self.values.append(text)
        return text


def _read_files(given: dict[str, Any]) -> _Held:
    """Put what files hold in the place of their names."""
    held = _Held()
    for key in ("kafka", "producer"):
        if isinstance(properties := given.get(key), Mapping):
            given[key] = {name: held.content(f"{key}.{name}", value) for name, value in properties.items()}
    if "data_source" in given:
        given["data_source"] = held.content("data_source", given["data_source"])
    return held


def _secrets(given: Mapping[str, Any], held: _Held) -> Secrets:
    properties = [given[key] for key in _PROPERTIES if isinstance(given.get(key), Mapping)]
    pairs = [(str(name), str(value)) for each in properties for name, value in each.items()]
    return Secrets(
        [
            *secrets_of_dsn(str(given.get("data_source", ""))),
            *(value for name, value in pairs if is_secret(name)),
            *(found for _, value in pairs for found in secrets_in_url(value)),
            *held.values,
        ]
    )


def _as_said(key: str, told: Translation) -> str:
    """Return the name under which a key, or a property of it, was given or should have been."""
    ours, dot, rest = key.partition(".")
    return f"{told.origin.get(ours) or told.places.get(ours, ours)}{dot}{rest}"


def _idle(form: Form, given: Mapping[str, Any], told: Translation) -> Iterator[str]:
    idle = ("in_flight_rows", "mark_rows") if form.delivery is Delivery.EXACTLY_ONCE else ("batch_rows",)
    for key in idle:
        if key in given:
            yield f"{_as_said(key, told)} is accepted without effect: delivery is {form.delivery}"


def _configuration(form: Form, given: Mapping[str, Any], secrets: Secrets, held: _Held) -> Configuration:
    host, _, port = form.status.rpartition(":")
    return Configuration(
        settings=Settings(
            name=form.identity,
            dsn=form.data_source or "",
            outbox=form.table,
            shape=form.shape,
            delivery=form.delivery,
            kafka=form.kafka,
            producer=form.producer,
            shards=form.shards,
            settling=form.settle,
            poison=form.poison,
            transforms=form.transform,
            limits=Limits(**{name: getattr(form, name) for name in Limits.__slots__}),
        ),
        election=ElectionSettings(
            kind=form.election,
            leader_topic=form.leader_topic,
            leader_group=form.leader_group,
            heartbeat_timeout_seconds=form.heartbeat_timeout_seconds,
            min_poll_seconds=form.min_poll_seconds,
            max_poll_seconds=form.longest_poll_seconds,
            lease_seconds=form.lease_seconds,
        ),
        policy=replace(
            POLICY,
            back_off_seconds=form.back_off_seconds,
            back_off_most_seconds=max(form.back_off_seconds, POLICY.back_off_most_seconds),
        ),
        status=None if form.status == "off" else (host, int(port)),
        status_by_default="status" not in given,
        spark=SparkOptions(
            master=form.spark_master,
            conf={name: _as_spark_has_it(value) for name, value in form.spark.items()},
            python=form.spark_python,
            py_files=form.spark_py_files,
            archives=form.spark_archives,
        ),
        metrics_seconds=form.metrics_seconds,
        log_format=form.log_format,
        log_level=form.log_level,
        secrets=secrets,
        shown=_shown(form, held),
    )


def _as_spark_has_it(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(form: Form, held: _Held) -> dict[str, Any]:
    """Return the form for people, as a file could have it: secrets are masked, and files stand by their names."""
    shown = form.model_dump(mode="json", by_alias=True, exclude_none=True)
    shown |= {"name": form.identity, "max_poll_seconds": form.longest_poll_seconds}
    for key in _PROPERTIES:
        shown[key] = {name: _shown_value(f"{key}.{name}", name, value, held) for name, value in shown[key].items()}
    if "data_source" in held.paths:
        shown["data_source"] = {"file": held.paths["data_source"]}
    else:
        shown["data_source"] = shown_dsn(form.data_source or "")
    return {key: shown[key] for key in KEYS if key in shown and OF_ELECTION.get(key, form.election) is form.election}


def _shown_value(key: str, name: str, value: Any, held: _Held) -> Any:
    return {"file": held.paths[key]} if key in held.paths else shown_property(name, value)
