"""The configuration keys of every service: election, pages, log, Spark.

A pipeline's form inherits this form first, so that these keys are listed after its own.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from thresher.config.form import Form, Rule, SparkProperties, Texts, lower_case, off_is_text
from thresher.config.log_level import LogLevel
from thresher.config.report import Problem
from thresher.config.setting import DefaultText
from thresher.core.errors import shorten
from thresher.core.secrets import Secret, SecretText
from thresher.core.topic_name import is_topic_name
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.observe.logs import LogFormat
from thresher.spark.session.settings import SparkOptions

STATUS = "127.0.0.1:8640"
# Keys that only one kind of election uses.
OF_ELECTION = {
    "leader_topic": ElectionKind.NELI,
    "heartbeat_timeout_seconds": ElectionKind.NELI,
    "min_poll_seconds": ElectionKind.NELI,
    "max_poll_seconds": ElectionKind.NELI,
}
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_ELECTION = ElectionSettings()


class ServiceForm(Form):
    """The configuration keys of a service."""

    leader_topic: Annotated[str | None, DefaultText("`<name>.leader`")] = Field(
        default=_ELECTION.leader_topic,
        description="neli: the leader topic. The process to which Kafka assigns its partition 0 leads.",
    )
    leader_group: Annotated[str | None, DefaultText("from the name")] = Field(
        default=_ELECTION.leader_group, description="neli: the consumer group."
    )
    heartbeat_timeout_seconds: float = Field(
        default=_ELECTION.heartbeat_timeout_seconds,
        gt=0,
        le=3_600,
        description="neli: seconds after which a leader that has not read its own heartbeat back steps down.",
    )
    min_poll_seconds: float = Field(
        default=_ELECTION.min_poll_seconds,
        gt=0,
        le=3_600,
        description="neli: the minimum number of seconds between two heartbeats. Without this bound, ten heartbeats "
        "are sent within the time-out.",
    )
    max_poll_seconds: Annotated[float | None, DefaultText("half of `heartbeat_timeout_seconds`")] = Field(
        default=None, gt=0, le=3_600, description="neli: the maximum number of seconds between two heartbeats."
    )
    metrics_seconds: float = Field(
        default=5.0,
        gt=0,
        le=86_400,
        description="Seconds between two readings of the throughput. Each reading is an event `MeterRead`, and a "
        "line of the log at level `debug`.",
    )
    log_format: Annotated[LogFormat, BeforeValidator(lower_case)] = Field(
        default=LogFormat.TEXT, description="The format of the log. `json` writes one object per line."
    )
    log_level: Annotated[LogLevel, BeforeValidator(lower_case), BeforeValidator(off_is_text)] = Field(
        default=LogLevel.INFO, description="The lowest level that is logged. `--verbose` is `debug`."
    )
    status: Annotated[str, BeforeValidator(off_is_text)] = Field(
        default=STATUS,
        description="Address for 'thresher status', probes and Prometheus, HOST:PORT or off. If the key is not given "
        "and the port is in use, a free port is used and logged: give each of several relays on one machine its own.",
    )
    status_hosts: Texts = Field(
        default=(),
        description="Host names under which the status pages answer, besides addresses and `localhost`: those that "
        "your probes and Prometheus use.",
    )
    spark_master: Annotated[str | None, DefaultText("local threads")] = Field(
        default=None, description="The Spark master, such as `spark://HOST:PORT`."
    )
    spark_python: str | None = Field(
        default=None,
        description="The path of Python for executors on other machines. See [the engine](architecture/engine.md).",
    )
    spark_archives: Texts = Field(
        default=(),
        description="Archives that 'thresher spark pack' made, as FILE#directory, with the Python environment of "
        "executors on other machines.",
    )
    spark_py_files: Texts = Field(
        default=(), description="Files with your functions, such as transforms, to ship to executors on other machines."
    )
    spark: SparkProperties = Field(default={}, description="Configuration properties of Spark.")

    @field_validator("leader_topic")
    @classmethod
    def _leader_topic(cls, topic: str | None) -> str | None:
        if topic is not None and not is_topic_name(topic):
            raise ValueError(f"1 to 249 of the characters a-z A-Z 0-9 . _ - are needed, not {shorten(topic)}")
        return topic

    @field_validator("leader_group")
    @classmethod
    def _leader_group(cls, group: str | None) -> str | None:
        if group is not None and not 1 <= len(group) <= 249:
            raise ValueError(f"1 to 249 characters are needed, not {shorten(group)}")
        return group

    @field_validator("status")
    @classmethod
    def _status(cls, status: str) -> str:
        host, _, port = status.rpartition(":")
        if status != "off" and (not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535):
            raise ValueError(f"HOST:PORT is needed, or 'off', not {shorten(status)}")
        return status

    @field_validator("status_hosts")
    @classmethod
    def _status_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [shorten(host) for host in hosts if not _HOST_NAME.fullmatch(host)]:
            raise ValueError(f"names without a port are needed, such as relay.example.com, not {', '.join(wrong)}")
        return hosts

    @property
    def longest_poll_seconds(self) -> float:
        """The most seconds between two heartbeats of a leader."""
        return self.heartbeat_timeout_seconds / 2 if self.max_poll_seconds is None else self.max_poll_seconds

    def election_settings(self, kind: ElectionKind, **own: Any) -> ElectionSettings:
        """Return the settings of this kind of election; `own` come from keys of the pipeline's own form."""
        return ElectionSettings(
            kind=kind,
            leader_topic=self.leader_topic,
            leader_group=self.leader_group,
            heartbeat_timeout_seconds=self.heartbeat_timeout_seconds,
            min_poll_seconds=self.min_poll_seconds,
            max_poll_seconds=self.longest_poll_seconds,
            **own,
        )

    @property
    def status_address(self) -> tuple[str, int] | None:
        """The address of the pages; None if they are off."""
        host, _, port = self.status.rpartition(":")
        return None if self.status == "off" else (host, int(port))

    @property
    def spark_options(self) -> SparkOptions:
        """How to start Spark."""
        return SparkOptions(
            master=self.spark_master,
            conf={name: _as_spark_has_it(value) for name, value in self.spark.items()},
            python=self.spark_python,
            py_files=self.spark_py_files,
            archives=self.spark_archives,
        )


def _as_spark_has_it(value: object) -> SecretText:
    if isinstance(value, Secret):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def election_keys_fit(of_election: Mapping[str, ElectionKind]) -> Rule:
    """Return the rule that refuses keys which the chosen election would ignore."""

    def problems(form: Any, given: Mapping[str, Any]) -> Iterator[Problem]:
        for key, kind in of_election.items():
            if given.get(key) is not None and form.election is not kind:
                yield key, f"it means nothing with 'election: {form.election}': leave it out, or elect by {kind}"

    return Rule(frozenset({"election"}), problems)


def _polls_in_time(form: ServiceForm, _: Mapping[str, Any]) -> Iterator[Problem]:
    longest = form.longest_poll_seconds
    if longest < form.min_poll_seconds:
        yield "max_poll_seconds", f"{longest:g} is less than min_poll_seconds, {form.min_poll_seconds:g}"
    if longest > form.heartbeat_timeout_seconds:
        yield "max_poll_seconds", "it is more than heartbeat_timeout_seconds: no heartbeat would come back in time"


# For forms with these keys.
POLLS_IN_TIME = Rule(frozenset({"heartbeat_timeout_seconds", "min_poll_seconds", "max_poll_seconds"}), _polls_in_time)
