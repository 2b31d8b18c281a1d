"""Reads a relay's configuration: a YAML file, then the environment, then flags, each overriding the one before.

Every problem is named in one message, with its key and the reason, and no value of a secret; nothing is started.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from confluent_kafka import KafkaException, Producer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.db.dsn import check_dsn
from thresher.kafka.transactional import GUARDED, properties
from thresher.outbox.shape import BUCKETS, Shape
from thresher.relay.exactly_once import Poison
from thresher.relay.names import valid_name
from thresher.relay.problem import ConfigurationInvalid
from thresher.relay.settings import Limits, Settings, Settling
from thresher.spark.settings import SparkOptions

_OWN_CLIENT = frozenset({"group.id", "isolation.level", "enable.auto.commit", "enable.partition.eof", "error_cb"})
STATUS = "127.0.0.1:8640"
_LIMITS = Limits()


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Form(BaseModel):
    """The keys of the file, which are also the names of flags and of environment variables."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    data_source: str
    outbox: str = "outbox"
    # `schema` is the model's own; the key is without the underscore.
    schema_: str | None = Field(default=None, alias="schema")
    shape: Shape = Shape.THRESHER
    kafka: dict[str, str | int | float | bool]
    producer: dict[str, str | int | float | bool] = {}
    shards: int = Field(default=2, ge=1, le=BUCKETS)
    settle: Settling = Settling.DELETE
    poison: Poison = Poison.DEAD_LETTER
    transform: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    batch_rows: int = Field(default=_LIMITS.batch_rows, ge=1, le=40_000)
    batch_bytes: int = Field(default=_LIMITS.batch_bytes, ge=1_000)
    batch_seconds: float = Field(default=_LIMITS.batch_seconds, gt=0, le=5)
    poll_seconds: float = Field(default=_LIMITS.poll_seconds, gt=0, le=60)
    grace_seconds: float = Field(default=_LIMITS.grace_seconds, ge=0, le=86_400)
    horizon_seconds: float = Field(default=_LIMITS.horizon_seconds, ge=60)
    in_flight_rows: int = Field(default=_LIMITS.in_flight_rows, ge=1, le=40_000)
    mark_rows: int = Field(default=_LIMITS.mark_rows, ge=1, le=40_000)
    status: str = STATUS
    spark_master: str | None = None
    spark_python: str | None = None
    spark_archives: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    spark_py_files: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    spark: dict[str, str | int | float | bool] = {}

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not valid_name(name):
            raise ValueError("1 to 200 of the characters a-z A-Z 0-9 . _ - are needed")
        return name

    @field_validator("data_source")
    @classmethod
    def _data_source(cls, dsn: str) -> str:
        check_dsn(dsn)
        return dsn

    @field_validator("kafka", "producer")
    @classmethod
    def _properties(cls, given: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(set(given) & (GUARDED | _OWN_CLIENT)):
            raise ValueError(f"{', '.join(taken)}: exactly-once rests on the relay's own setting, leave it out")
        return given

    @field_validator("transform")
    @classmethod
    def _paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            module, _, function = path.partition(":")
            if not function or not all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
                raise ValueError(f"{path!r} is not of the form package.module:function")
        return paths

    @field_validator("status")
    @classmethod
    def _status(cls, status: str) -> str:
        host, _, port = status.rpartition(":")
        if status != "off" and (not host or not port.isdigit() or int(port) > 65_535):
            raise ValueError("HOST:PORT is needed, or 'off'")
        return status

    @model_validator(mode="after")
    def _together(self) -> "Form":
        if "bootstrap.servers" not in self.kafka:
            raise ValueError("kafka: 'bootstrap.servers' is missing: where is the broker?")
        if self.shape is Shape.GOHARVEST and self.settle is Settling.STAMP:
            raise ValueError("settle: goharvest's table has no column for a dispatched time; use 'delete'")
        TableName(table=self.outbox, schema=self.schema_)
        try:
            Producer({**properties("trial", {**self.kafka, **self.producer}), "log_level": 0})
        except KafkaException as error:
            raise ValueError(f"kafka: {error.args[0].str()}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"kafka: {error}") from None
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What `thresher run` needs to know."""

    settings: Settings
    status: tuple[str, int] | None
    # The port was not chosen by anybody: another one will do.
    status_by_default: bool
    spark: SparkOptions


def load(path: Path | None, overrides: Mapping[str, Any]) -> Configuration:
    """Read and check a configuration. `overrides` holds what flags and environment say, None where they are silent."""
    given = _read(path) if path is not None else {}
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(given.get(key), Mapping):
            given[key] = {**given[key], **value}
        elif value is not None and value != {}:
            given[key] = value
    try:
        form = Form.model_validate(given)
    except ValidationError as error:
        raise ConfigurationInvalid("the configuration cannot work: " + "; ".join(_problems(error))) from None
    except InvalidInput as error:
        raise ConfigurationInvalid(f"the configuration cannot work: {error}") from None
    return _configuration(form, given)


def _configuration(form: Form, given: Mapping[str, Any]) -> Configuration:
    limits = Limits(**{name: getattr(form, name) for name in Limits.__slots__})
    host, _, port = form.status.rpartition(":")
    return Configuration(
        settings=Settings(
            name=form.name,
            dsn=form.data_source,
            outbox=TableName(table=form.outbox, schema=form.schema_),
            shape=form.shape,
            kafka=form.kafka,
            producer=form.producer,
            shards=form.shards,
            settling=form.settle,
            poison=form.poison,
            transforms=form.transform,
            limits=limits,
        ),
        status=None if form.status == "off" else (host, int(port)),
        status_by_default="status" not in given,
        spark=SparkOptions(
            master=form.spark_master,
            conf={name: str(value) for name, value in form.spark.items()},
            python=form.spark_python,
            py_files=form.spark_py_files,
            archives=form.spark_archives,
        ),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise ConfigurationInvalid(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or "malformed"
        raise ConfigurationInvalid(f"{path}{where}: not YAML: {what}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigurationInvalid(f"{path}: keys with values are needed at the top")
    return {str(key): value for key, value in found.items()}


def _problems(error: ValidationError) -> list[str]:
    known = [info.alias or name for name, info in Form.model_fields.items()]
    problems = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, known, 1)
            message = f"there is no such key{f', did you mean {near[0]!r}?' if near else ''}"
        elif problem["type"] == "missing":
            message = "it is missing"
        problems.append(f"{key}: {message}" if key else message)
    return problems
