"""The keys of every process that competes for a pipeline and runs it on Spark: election, pages, log, Spark.

A pipeline's form has them behind its own, by inheriting this one first.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from thresher.config.form import Form, Properties, Rule, Texts, lower_case, off_is_text
from thresher.config.log_level import LogLevel
from thresher.config.report import Problem
from thresher.config.setting import DefaultText
from thresher.core.errors import shorten
from thresher.core.topic_name import is_topic_name
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.observe.logs import LogFormat
from thresher.spark.session.settings import SparkOptions

STATUS = "127.0.0.1:8640"
# Keys that mean something to one way of electing alone.
OF_ELECTION = {
    "leader_topic": ElectionKind.NELI,
    "heartbeat_timeout_seconds": ElectionKind.NELI,
    "min_poll_seconds": ElectionKind.NELI,
    "max_poll_seconds": ElectionKind.NELI,
}
_ELECTION = ElectionSettings()


class ServiceForm(Form):
    """The keys of a process."""

    leader_topic: Annotated[str | None, DefaultText("`<name>.leader`")] = Field(
        default=_ELECTION.leader_topic, description="neli: the topic whose partition 0 decides."
    )
    leader_group: Annotated[str | None, DefaultText("from the name")] = Field(
        default=_ELECTION.leader_group, description="neli: the consumer group."
    )
    heartbeat_timeout_seconds: float = Field(
        default=_ELECTION.heartbeat_timeout_seconds,
        gt=0,
        le=3_600,
        description="neli: seconds after which a leader that has not heard itself steps down.",
    )
    min_poll_seconds: float = Field(
        default=_ELECTION.min_poll_seconds,
        gt=0,
        le=3_600,
        description="neli: the least seconds between two heartbeats. Otherwise ten are sent within the time-out.",
    )
    max_poll_seconds: Annotated[float | None, DefaultText("half of `heartbeat_timeout_seconds`")] = Field(
        default=None, gt=0, le=3_600, description="neli: the most seconds between two heartbeats."
    )
    metrics_seconds: float = Field(
        default=5.0,
        gt=0,
        le=86_400,
        description="Seconds between two readings of the meter. They become a program's events and lines of the log "
        "at level `debug`.",
    )
    log_format: Annotated[LogFormat, BeforeValidator(lower_case)] = Field(
        default=LogFormat.TEXT, description="The format of the log. `json` is one object a line."
    )
    log_level: Annotated[LogLevel, BeforeValidator(lower_case), BeforeValidator(off_is_text)] = Field(
        default=LogLevel.INFO, description="The least that is logged. `--verbose` is `debug`."
    )
    status: Annotated[str, BeforeValidator(off_is_text)] = Field(
        default=STATUS,
        description="Address for 'thresher status', probes and Prometheus, HOST:PORT or off. Where nothing is said and "
        "the port is taken, another one is used and logged: give each of several relays on one machine its own.",
    )
    spark_master: Annotated[str | None, DefaultText("local threads")] = Field(
        default=None, description="A Spark master."
    )
    spark_python: str | None = Field(
        default=None, description="The Python of executors elsewhere. See [the engine](architecture/engine.md)."
    )
    spark_archives: Texts = Field(
        default=(),
        description="Archives that 'thresher spark pack' made, as FILE#directory. They hold the environment of "
        "executors elsewhere.",
    )
    spark_py_files: Texts = Field(default=(), description="Files with transforms to ship to executors elsewhere.")
    spark: Properties = Field(default={}, description="Settings of Spark.")

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

    @property
    def longest_poll_seconds(self) -> float:
        """How long an elected leader may go without asking Kafka."""
        return self.heartbeat_timeout_seconds / 2 if self.max_poll_seconds is None else self.max_poll_seconds

    @property
    def status_address(self) -> tuple[str, int] | None:
        """Where its pages are shown; None for nowhere."""
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


def _as_spark_has_it(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def elects_as_told(of_election: Mapping[str, ElectionKind]) -> Rule:
    """Return the rule that no key is given which means nothing to the way of electing: that would go unnoticed."""

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
        yield "max_poll_seconds", "it is more than heartbeat_timeout_seconds: no heartbeat would be heard in time"


# For the rules of a form that has these keys.
POLLS_IN_TIME = Rule(frozenset({"heartbeat_timeout_seconds", "min_poll_seconds", "max_poll_seconds"}), _polls_in_time)
