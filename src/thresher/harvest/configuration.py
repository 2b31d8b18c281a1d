"""Reads a relay's configuration: a YAML file, then the environment, then flags, each overriding the one before.

The file is in our own format or in goharvest's, which is translated first. One message reports every problem, with its
key, the reason and the nearest key, and without secrets; nothing is started.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thresher.config.contradiction import contradictions
from thresher.config.document import read
from thresher.config.environment import from_environment
from thresher.config.form import Rule
from thresher.config.kafka_properties import SERVERS
from thresher.config.loading import Completed, complete, lay_over
from thresher.config.log_level import LogLevel
from thresher.core.secrets import Secrets
from thresher.db.postgres.dsn import kept_dsn
from thresher.db.postgres.lib_pq import with_tls
from thresher.election.settings import ElectionSettings
from thresher.harvest.form import KEYS, RelayForm
from thresher.harvest.form_rules import OF_ELECTION, OF_LOCKING
from thresher.harvest.goharvest_file import (
    DATA_SOURCE,
    Translation,
    demand_tls,
    forget_unelected,
    is_goharvest_file,
    keep_partitions,
    translate,
    untranslated,
)
from thresher.harvest.settings_check import election_of, settings_of
from thresher.observe.logs import LogFormat
from thresher.relay.settings import POLICY, Coordination, Delivery, Dispatch, Settings
from thresher.spark.policy import Policy
from thresher.spark.session.settings import SparkOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The complete configuration of a relay."""

    settings: Settings
    election: ElectionSettings
    policy: Policy
    status: tuple[str, int] | None
    # The port is the default: another free port may be used.
    status_by_default: bool
    status_hosts: tuple[str, ...]
    spark: SparkOptions
    # Seconds without progress after which a leader steps down.
    step_down_seconds: float
    # Seconds between two readings of the throughput.
    metrics_seconds: float
    log_format: LogFormat
    log_level: LogLevel
    # Masked in logs and errors.
    secrets: Secrets
    # All keys in our own format, for people: secrets are masked.
    shown: Mapping[str, Any] = field(repr=False)


def load(
    path: Path | None,
    overrides: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    *,
    warn: Callable[[str], object] = logger.warning,
    otherwise: Callable[[], Mapping[str, Any]] = dict,
    rules: Sequence[Rule] = (),
) -> Configuration:
    """Read and check a configuration. `overrides` holds the values of flags, None for an absent flag.

    `warn` gets a remark for each key without effect. `otherwise` returns database and broker: it is called if there is
    no file, and neither is named elsewhere. `rules` are checked in addition to those of the form. Raises
    `ConfigurationInvalid` with every problem.
    """
    found = read(path) if path is not None else {}
    translated = translate(found) if is_goharvest_file(found) else untranslated(found)
    variables = from_environment(RelayForm, environment or {})
    demands_tls = translated.origin.get("data_source") == DATA_SOURCE and not (environment or {}).get("PGSSLMODE")
    if demands_tls:
        demand_tls(translated)
    given: dict[str, Any] = {key: value for key, value in translated.keys.items() if value is not None}
    in_file = _named_in_file(found, translated)
    covered = [problem for layer in (variables.keys, overrides) for problem in lay_over(RelayForm, given, layer)]
    covered += contradictions(RelayForm, in_file, variables.keys, given)
    if path is None and not _says_where(given):
        lay_over(RelayForm, given, otherwise())
    if is_goharvest_file(found):
        keep_partitions(given)
    forget_unelected(translated, given)
    completed = complete(
        RelayForm,
        given,
        problems=[
            *translated.problems,
            *variables.problems,
            *((_name_in_file(key, translated), why) for key, why in covered),
        ],
        remarks=variables.remarks,
        # Keys that could not be translated are not reported as missing too.
        troubled=set(translated.origin) - set(translated.keys),
        name_of=lambda key: _name_in_file(key, translated),
        rules=rules,
    )
    if demands_tls and given.get("data_source") is translated.keys.get("data_source") and completed.form.data_source:
        # Also if a file holds it, whose content is known only now.
        dsn = kept_dsn(with_tls(completed.form.data_source.reveal()))
        completed = replace(completed, form=completed.form.model_copy(update={"data_source": dsn}))
    for remark in [*translated.remarks, *variables.remarks, *_without_effect(completed, translated)]:
        warn(completed.secrets.mask(remark))
    return _configuration(completed)


def _named_in_file(found: Mapping[str, Any], translated: Translation) -> Mapping[str, Any]:
    """Return the keys that the file itself has, without goharvest's defaults."""
    if not is_goharvest_file(found):
        return dict(translated.keys)
    named = {key: value for key, value in translated.keys.items() if key in translated.origin}
    theirs = found["harvest"].get("baseKafkaConfig") if isinstance(found["harvest"], Mapping) else None
    return {**named, "kafka": theirs} if translated.origin.get("kafka") == "harvest.baseKafkaConfig" else named


def _says_where(given: Mapping[str, Any]) -> bool:
    kafka = given.get("kafka", {})
    return "data_source" in given or not isinstance(kafka, Mapping) or not SERVERS.isdisjoint(kafka)


def _name_in_file(key: str, translated: Translation) -> str:
    """Return the name of a key, or of its property, in the file: where it was given, or belongs."""
    ours, dot, rest = key.partition(".")
    return f"{translated.origin.get(ours) or translated.places.get(ours, ours)}{dot}{rest}"


def _without_effect(completed: Completed[RelayForm], translated: Translation) -> Iterator[str]:
    form = completed.form
    idle = ("in_flight_rows", "mark_rows") if form.delivery is Delivery.EXACTLY_ONCE else ("batch_rows",)
    for key in idle:
        if key in completed.given:
            yield f"{_name_in_file(key, translated)} is accepted without effect: delivery is {form.delivery}"
    unswept = ("poll_seconds",) if form.dispatch is Dispatch.IMMEDIATE else ("min_age_seconds", "sweep_seconds")
    for key in unswept:
        if key in completed.given:
            yield f"{_name_in_file(key, translated)} is accepted without effect: dispatch is {form.dispatch}"


def _configuration(completed: Completed[RelayForm]) -> Configuration:
    form = completed.form
    return Configuration(
        settings=settings_of(form),
        election=election_of(form),
        policy=replace(
            POLICY,
            back_off_seconds=form.back_off_seconds,
            back_off_most_seconds=max(form.back_off_seconds, POLICY.back_off_most_seconds),
        ),
        status=form.status_address,
        status_by_default="status" not in completed.given,
        status_hosts=form.status_hosts,
        spark=form.spark_options,
        step_down_seconds=form.step_down_seconds,
        metrics_seconds=form.metrics_seconds,
        log_format=form.log_format,
        log_level=form.log_level,
        secrets=completed.secrets,
        shown=_shown(completed),
    )


def _shown(completed: Completed[RelayForm]) -> dict[str, Any]:
    """Return the values for people, as in a file, without the keys of other kinds of election or coordination."""
    form = completed.form
    shown = {**completed.shown, "name": form.identity, "max_poll_seconds": form.longest_poll_seconds}
    if form.coordination is Coordination.TOPIC_LOCK:
        shown["batch_rows"] = form.limits.batch_rows
        others = {"election", *OF_ELECTION}
    else:
        others = {*OF_LOCKING, *(key for key, kind in OF_ELECTION.items() if kind is not form.election)}
    return {key: shown[key] for key in KEYS if key in shown and key not in others}
