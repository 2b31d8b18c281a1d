"""Our own form of a configuration: its keys, their bounds, and what they must agree on.

The keys of the file are also the names of flags and of environment variables. Whatever is wrong is told key by key, all
of it at once; no value is repeated that could be a secret.
"""

import difflib
import enum
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any

from confluent_kafka import KafkaException, Producer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import InvalidInput, shorten
from thresher.db import TableName
from thresher.db.postgres.dsn import check_dsn
from thresher.delivery.carrier import Poison
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.kafka.property import PROPERTIES, plain
from thresher.kafka.transactional import GUARDED, properties
from thresher.observe.logs import LogFormat
from thresher.outbox.shape import BUCKETS, Shape
from thresher.relay.leader.relay import POLICY
from thresher.relay.names import valid_name
from thresher.relay.settings import Delivery, Limits, Settings, Settling

STATUS = "127.0.0.1:8640"
# A key, and what is wrong with it.
Problem = tuple[str, str]
_OWN_CLIENT = frozenset({"group.id", "isolation.level", "enable.auto.commit", "enable.partition.eof", "error_cb"})
_SINGLE = str | int | float
SERVERS = frozenset({"bootstrap.servers", "metadata.broker.list"})
# Read when a client is made: one that is not there is told more plainly than the client does.
_FILES = frozenset(
    {"ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"}
)
_NONE = "no.property.has.this.name"
_LIMITS = Limits()
_ELECTION = ElectionSettings()
_ROWS = 40_000
_ADDRESS = re.compile(r"(\w+://)?(\[[0-9a-fA-F:.%]+\]|[^\s:/,\[\]]+)(:[0-9]{1,5})?")
# Keys that mean something to one way of electing alone. `leader_group` may be a relay's name besides.
OF_ELECTION = {
    "leader_topic": ElectionKind.NELI,
    "heartbeat_timeout_seconds": ElectionKind.NELI,
    "min_poll_seconds": ElectionKind.NELI,
    "max_poll_seconds": ElectionKind.NELI,
    "lease_seconds": ElectionKind.LEASE,
}


class LogLevel(enum.StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    OFF = "off"


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _off(value: object) -> object:
    # YAML takes a bare `off` for false.
    return "off" if value is False else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _single(given: object) -> object:
    if not isinstance(given, Mapping):
        raise ValueError("properties with their values are needed")  # noqa: TRY004 - pydantic takes this one
    if wrong := [str(name) for name, value in given.items() if not isinstance(value, _SINGLE)]:
        raise ValueError(f"{', '.join(wrong)}: a single value is needed")
    return {str(name): value for name, value in given.items()}


Properties = Annotated[dict[str, Any], BeforeValidator(_single)]
Paths = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Form(BaseModel):
    """Every key. One that is required has a default too, so that its absence is told with everything else."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str | None = None
    data_source: str | None = None
    outbox: str = "outbox"
    # `schema` is the model's own; the key is without the underscore.
    schema_: str | None = Field(default=None, alias="schema")
    shape: Shape = Shape.THRESHER
    delivery: Delivery = Delivery.EXACTLY_ONCE
    kafka: Properties = {}
    producer: Properties = {}
    shards: int = Field(default=2, ge=1, le=BUCKETS)
    settle: Settling = Settling.DELETE
    poison: Poison = Poison.DEAD_LETTER
    transform: Paths = ()
    batch_rows: int = Field(default=_LIMITS.batch_rows, ge=1, le=_ROWS)
    batch_bytes: int = Field(default=_LIMITS.batch_bytes, ge=1_000)
    batch_seconds: float = Field(default=_LIMITS.batch_seconds, gt=0, le=5)
    poll_seconds: float = Field(default=_LIMITS.poll_seconds, gt=0, le=60)
    grace_seconds: float = Field(default=_LIMITS.grace_seconds, ge=0, le=86_400)
    horizon_seconds: float = Field(default=_LIMITS.horizon_seconds, ge=60, allow_inf_nan=False)
    in_flight_rows: int = Field(default=_LIMITS.in_flight_rows, ge=1, le=_ROWS)
    mark_rows: int = Field(default=_LIMITS.mark_rows, ge=1, le=_ROWS)
    back_off_seconds: float = Field(default=POLICY.back_off_seconds, gt=0, le=3_600)
    election: ElectionKind = _ELECTION.kind
    leader_topic: str | None = _ELECTION.leader_topic
    leader_group: str | None = _ELECTION.leader_group
    heartbeat_timeout_seconds: float = Field(default=_ELECTION.heartbeat_timeout_seconds, gt=0, le=3_600)
    min_poll_seconds: float = Field(default=_ELECTION.min_poll_seconds, gt=0, le=3_600)
    # Half of the heartbeat's time-out.
    max_poll_seconds: float | None = Field(default=None, gt=0, le=3_600)
    lease_seconds: float = Field(default=_ELECTION.lease_seconds, ge=0.2, le=3_600)
    metrics_seconds: float = Field(default=5.0, gt=0, le=86_400)
    log_format: Annotated[LogFormat, BeforeValidator(_lower)] = LogFormat.TEXT
    log_level: Annotated[LogLevel, BeforeValidator(_lower), BeforeValidator(_off)] = LogLevel.INFO
    status: Annotated[str, BeforeValidator(_off)] = STATUS
    spark_master: str | None = None
    spark_python: str | None = None
    spark_archives: Paths = ()
    spark_py_files: Paths = ()
    spark: Properties = {}

    @field_validator("name")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        if name is not None and not valid_name(name):
            raise ValueError("1 to 200 of the characters a-z A-Z 0-9 . _ - are needed")
        return name

    @field_validator("data_source")
    @classmethod
    def _data_source(cls, dsn: str | None) -> str | None:
        if dsn is not None:
            check_dsn(dsn)
        return dsn

    @field_validator("kafka")
    @classmethod
    def _servers(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "metadata.broker.list" not in given:
            return given
        if "bootstrap.servers" in given:
            raise ValueError("bootstrap.servers and metadata.broker.list are the same: one of them has to go")
        return {"bootstrap.servers" if name in SERVERS else name: value for name, value in given.items()}

    @field_validator("transform")
    @classmethod
    def _paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            module, _, function = path.partition(":")
            if not function or not all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
                raise ValueError(f"{shorten(path)} is not of the form package.module:function")
        return paths

    @field_validator("leader_topic")
    @classmethod
    def _topic(cls, topic: str | None) -> str | None:
        if topic is not None and (re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) is None or topic in {".", ".."}):
            raise ValueError("1 to 249 of the characters a-z A-Z 0-9 . _ - are needed")
        return topic

    @field_validator("leader_group")
    @classmethod
    def _group(cls, group: str | None) -> str | None:
        if group is not None and not 1 <= len(group) <= 249:
            raise ValueError("1 to 249 characters are needed")
        return group

    @field_validator("status")
    @classmethod
    def _status(cls, status: str) -> str:
        host, _, port = status.rpartition(":")
        if status != "off" and (not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535):
            raise ValueError("HOST:PORT is needed, or 'off'")
        return status

    @property
    def table(self) -> TableName:
        """The outbox."""
        return TableName(table=self.outbox, schema=self.schema_)

    @property
    def identity(self) -> str:
        """The relay's name: its own, or that of its group; never that of a host, a process or a program."""
        return self.name or self.leader_group or ""

    @property
    def longest_poll_seconds(self) -> float:
        """How long an elected leader may go without asking Kafka."""
        return self.heartbeat_timeout_seconds / 2 if self.max_poll_seconds is None else self.max_poll_seconds


KEYS = tuple(info.alias or name for name, info in Form.model_fields.items())


def nearest(key: str, known: Iterable[str]) -> str:
    """Return the words that tell of the nearest key there is, if one is near."""
    # However it was put together: dataSource is near data_source.
    bare = {re.sub(r"[\W_]", "", name).lower(): name for name in known}
    near = difflib.get_close_matches(re.sub(r"[\W_]", "", key).lower(), bare, 1, 0.7)
    return f", did you mean {bare[near[0]]!r}?" if near else ""


def no_such(key: str, known: Iterable[str]) -> str:
    """Return what is said of a key that there is not."""
    return f"there is no such key{nearest(key, known)}"


def fill_in(given: Mapping[str, Any], *, troubled: Collection[str] = ()) -> tuple[Form, list[Problem]]:
    """Return the form, as far as it can be filled in, and all that is wrong with what was given.

    Keys in `troubled` have a problem that is told elsewhere: nothing is concluded from their absence.
    """
    wrong: set[str] = set()
    problems: list[Problem] = []
    try:
        form = Form.model_validate(dict(given))
    except ValidationError as error:
        problems = list(_told(error))
        wrong = {str(problem["loc"][0]) for problem in _plainly(error)}
        form = Form.model_validate({key: value for key, value in given.items() if key not in wrong})
    return form, problems + list(_disagreements(form, given, wrong | set(troubled)))


def check_settings(settings: Settings) -> None:
    """Raise `ConfigurationInvalid` for what a program says that a file could not say either. No server is asked."""
    given: dict[str, Any] = {
        "name": settings.name,
        "data_source": settings.dsn,
        "outbox": settings.outbox.table,
        "schema": settings.outbox.schema,
        "shape": settings.shape,
        "delivery": settings.delivery,
        # What a file cannot hold, such as a function that fetches a token, only the client can judge.
        "kafka": {name: value for name, value in settings.kafka.items() if isinstance(value, _SINGLE)},
        "producer": {name: value for name, value in settings.producer.items() if isinstance(value, _SINGLE)},
        "shards": settings.shards,
        "settle": settings.settling,
        "poison": settings.poison,
        "transform": settings.transforms,
        **{name: getattr(settings.limits, name) for name in Limits.__slots__},
    }
    if settings.producer_factory is not None:
        # They may be its own.
        given["producer"] = {}
    # libpq has an environment too.
    _, problems = fill_in(given, troubled=() if settings.dsn else ("data_source",))
    if problems:
        raise ConfigurationInvalid(together(problems))


def together(report: Sequence[Problem]) -> str:
    """Return all problems in one message."""
    problems = [f"{key}: {why}" for key, why in report]
    lead = "the configuration cannot work: "
    return lead + problems[0] if len(problems) == 1 else "\n  ".join([lead.strip(), *problems])


def _plainly(error: ValidationError) -> list[Any]:
    return error.errors(include_input=False, include_url=False, include_context=False)


def _told(error: ValidationError) -> Iterator[Problem]:
    for problem in _plainly(error):
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        yield key, no_such(key, KEYS) if problem["type"] == "extra_forbidden" else message


def _disagreements(form: Form, given: Mapping[str, Any], unclear: Set[str]) -> Iterator[Problem]:
    for keys, rule in _RULES:
        if not unclear & keys:
            yield from rule(form, given)


def _has_a_name(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    if not form.identity:
        yield "name", "it is missing: the same in every process that competes, another for every other outbox"
    elif form.name is None and not valid_name(form.identity):
        yield "leader_group", "it cannot be the relay's name besides (a-z A-Z 0-9 . _ -): give 'name' too"


def _has_a_database(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    if not form.data_source:
        yield "data_source", "it is missing: where is the database?"


def _has_a_table(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        TableName(table=form.outbox, schema=form.schema_)
    except InvalidInput as error:
        yield "outbox", str(error)


def _settles_its_shape(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    if form.shape is Shape.GOHARVEST and form.settle is Settling.STAMP:
        yield "settle", "goharvest's table has no column for a dispatched time; use 'delete'"


def _elects_as_told(form: Form, given: Mapping[str, Any]) -> Iterator[Problem]:
    for key, kind in OF_ELECTION.items():
        if given.get(key) is not None and form.election is not kind:
            yield key, f"it means nothing with 'election: {form.election}': leave it out, or elect by {kind}"


def _polls_in_time(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    longest = form.longest_poll_seconds
    if longest < form.min_poll_seconds:
        yield "max_poll_seconds", f"{longest:g} is less than min_poll_seconds, {form.min_poll_seconds:g}"
    if longest > form.heartbeat_timeout_seconds:
        yield "max_poll_seconds", "it is more than heartbeat_timeout_seconds: no heartbeat would be heard in time"


def _leaves_guarantees_alone(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    for place, name, _value in _properties_of(form):
        if _guarded(name):
            yield f"{place}.{name}", f"{form.delivery} rests on the relay's own setting, leave it out"


def _has_a_broker(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    servers = str(form.kafka.get("bootstrap.servers", ""))
    if not form.kafka:
        yield "kafka", "it is missing: where is the broker ('bootstrap.servers')?"
    elif not servers:
        yield "kafka", "'bootstrap.servers' is missing: where is the broker?"
    elif not all(_ADDRESS.fullmatch(part.strip()) for part in servers.split(",")):
        yield "kafka.bootstrap.servers", "HOST:PORT is needed, or several, separated by commas"


def _has_properties_that_there_are(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    for place, name, value in _properties_of(form):
        if not _guarded(name) and (why := _wrong_alone(name, value)):
            yield f"{place}.{name}", why


def _has_properties_that_agree(form: Form, _: Mapping[str, Any]) -> Iterator[Problem]:
    """Let the client judge all of its properties together, without servers, so that nothing is connected to."""
    given = {name: (place, value) for place, name, value in _properties_of(form)}
    trial = {
        name: value
        for name, (_place, value) in given.items()
        if name != "bootstrap.servers" and not _guarded(name) and not _wrong_alone(name, value)
    }
    try:
        Producer({**properties("trial", trial), "log_level": 0})
    except KafkaException as error:
        why = str(error.args[0].str()).removeprefix("Failed to create producer: ")
        named = [name for name in trial if re.search(rf"(?<![\w.]){re.escape(plain(name))}(?![\w.])", why)]
        yield f"{given[named[0]][0]}.{named[0]}" if named else "kafka", why


def _properties_of(form: Form) -> Iterator[tuple[str, str, Any]]:
    for place, given in (("kafka", form.kafka), ("producer", form.producer)):
        for name in sorted(given):
            yield place, name, given[name]


def _guarded(name: str) -> bool:
    return plain(name) in GUARDED | _OWN_CLIENT


def _wrong_alone(name: str, value: Any) -> str:
    """Return what is wrong with a property whatever the others are; nothing if that is nothing."""
    if name in _FILES and value != "probe" and not Path(str(value)).exists():
        return f"there is no file {shorten(value)}"
    try:
        # The second is refused for certain, so that no client is made.
        Producer({name: value, _NONE: ""})
    except KafkaException as error:
        why = str(error.args[0].str())
        if f'"{_NONE}"' in why:
            return ""
        if why.startswith("No such"):
            return no_such(name, PROPERTIES)
        # The client repeats values, and may repeat them in part: a secret could be at the wrong place.
        return re.sub(r'^Invalid value ".*" for', "this is no value for", why, flags=re.DOTALL)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


_Rule = Callable[[Form, Mapping[str, Any]], Iterator[Problem]]
# What keys must agree on; a rule is asked only where each of its keys could be read.
_RULES: tuple[tuple[frozenset[str], _Rule], ...] = (
    (frozenset({"name", "leader_group"}), _has_a_name),
    (frozenset({"data_source"}), _has_a_database),
    (frozenset({"outbox", "schema"}), _has_a_table),
    (frozenset({"shape", "settle"}), _settles_its_shape),
    (frozenset({"election"}), _elects_as_told),
    (frozenset({"heartbeat_timeout_seconds", "min_poll_seconds", "max_poll_seconds"}), _polls_in_time),
    (frozenset(), _leaves_guarantees_alone),
    (frozenset({"kafka"}), _has_a_broker),
    (frozenset(), _has_properties_that_there_are),
    (frozenset({"kafka", "producer"}), _has_properties_that_agree),
)
