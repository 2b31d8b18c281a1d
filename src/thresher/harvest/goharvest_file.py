"""Translates a configuration file of goharvest's program `reaper` into our own keys.

1. The section `harvest` holds goharvest's keys, and `logging.level` is beside it. A section `thresher` may add our own
   keys. A value that is given in both is a problem.
2. The defaults are goharvest's, except for the group id: goharvest makes it from the program's name, and a relay's
   identity is never guessed.
3. A limit without a counterpart is accepted without effect, and a remark says so.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.config.duration import seconds_of
from thresher.config.log_level import LogLevel
from thresher.config.report import Problem, no_such_key
from thresher.core.errors import shorten
from thresher.db.postgres.lib_pq import from_lib_pq, names_no_sslmode, with_tls
from thresher.election.settings import ElectionKind
from thresher.harvest.form import KEYS
from thresher.harvest.form_rules import OF_ELECTION
from thresher.kafka.property import plain
from thresher.outbox.shape import Shape
from thresher.relay.settings import Delivery

SECTIONS = ("harvest", "logging", "thresher")
# goharvest's behaviour in our keys. One shard, because its table has no index by which several could share it.
_NATURE: dict[str, Any] = {
    "shape": Shape.GOHARVEST,
    "delivery": Delivery.AT_LEAST_ONCE,
    "election": ElectionKind.NELI,
    "shards": 1,
}
DATA_SOURCE = "harvest.dataSource"
_DATA_SOURCE = "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable"
_LEVELS = {
    "all": LogLevel.DEBUG,
    "trace": LogLevel.DEBUG,
    "debug": LogLevel.DEBUG,
    "info": LogLevel.INFO,
    "warn": LogLevel.WARNING,
    "error": LogLevel.ERROR,
    "off": LogLevel.OFF,
}
_MOST_ROWS = 40_000
# Our shortest time. goharvest allows 0.
_SHORTEST_SECONDS = 0.001
# Properties that our producer sets itself, so that outcomes are certain. goharvest lets its users set them.
_BOUNDS_OF_OURS = frozenset(
    {
        "delivery.timeout.ms",
        "message.timeout.ms",
        "socket.timeout.ms",
        "transaction.timeout.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
    }
)
_IDENTIFIER = r'(?:"(?:[^"\0]|"")+"|[^\W\d][\w$]*)'
_TABLE = re.compile(rf"(?:({_IDENTIFIER})\.)?({_IDENTIFIER})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One of goharvest's limits: its default and least value in goharvest, and our key for it, if any."""

    default: str
    least: str
    counts: bool = False
    key: str | None = None
    # Why it has no effect.
    instead: str = ""


LIMITS = {
    "ioErrorBackoff": Limit(default="500ms", least="0s", key="back_off_seconds"),
    "pollDuration": Limit(default="1ms", least="1ms", instead="the election listens all the time"),
    "minPollInterval": Limit(default="100ms", least="1ms", key="min_poll_seconds"),
    "maxPollInterval": Limit(default="heartbeatTimeout/2", least="1ms", key="max_poll_seconds"),
    "heartbeatTimeout": Limit(default="5s", least="1ms", key="heartbeat_timeout_seconds"),
    "drainInterval": Limit(
        default="min(maxPollInterval, queueTimeout)",
        least="1ms",
        instead="no wait for a key is needed: its next row is sent when the one before is purged",
    ),
    "queueTimeout": Limit(
        default="30s", least="1ms", instead="transactions have their own time-outs, and rows wait in the table"
    ),
    "markBackoff": Limit(default="10ms", least="0s", key="poll_seconds"),
    "maxInFlightRecords": Limit(default="1000", least="1", counts=True, key="in_flight_rows"),
    "sendConcurrency": Limit(
        default="8", least="1", counts=True, instead="rows are sent pipelined; 'shards' in 'thresher' shares the keys"
    ),
    "sendBuffer": Limit(default="10", least="0", counts=True, instead="goharvest's has none either"),
    "markQueryRecords": Limit(default="100", least="1", counts=True, key="mark_rows"),
    "minMetricsInterval": Limit(default="5s", least="0s", key="metrics_seconds"),
}
KEYS_OF_HARVEST = (
    "baseKafkaConfig", "producerKafkaConfig", "leaderTopic", "leaderGroupID", "dataSource", "outboxTable", "limits",
    "name",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A configuration in our keys: the names under which they were given, problems and remarks."""

    keys: dict[str, Any] = field(default_factory=dict, repr=False)
    origin: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    # The name in goharvest's format for each of our keys that was not given.
    places: dict[str, str] = field(default_factory=dict)

    def give(self, key: str, value: Any, origin: str) -> None:
        """Set the value of one of our keys, and the name under which it was given."""
        self.keys[key] = value
        self.origin[key] = origin

    def fault(self, origin: str, why: str, key: str | None = None) -> None:
        """Add a problem. If `key` is given, that key of ours is not reported as missing too."""
        self.problems.append((origin, why))
        if key is not None:
            self.origin[key] = origin


def is_goharvest_file(found: Mapping[str, Any]) -> bool:
    """Whether a file is in goharvest's format."""
    return "harvest" in found


def untranslated(found: Mapping[str, Any]) -> Translation:
    """Take a file in our own format as it is. A section of goharvest's without `harvest` is a problem."""
    told = Translation(keys={key: value for key, value in found.items() if key not in SECTIONS})
    for key in found:
        if key in SECTIONS:
            told.fault(key, "it belongs beside 'harvest', in goharvest's format; our own keys are at the top level")
    return told


def translate(found: Mapping[str, Any]) -> Translation:
    """Translate a file in goharvest's format."""
    done = Translation(keys=dict(_NATURE), places={"name": "harvest.leaderGroupID"})
    for key in found:
        if key in KEYS:
            done.fault(key, "beside 'harvest', our own keys belong under 'thresher'")
        elif key not in SECTIONS:
            done.fault(key, no_such_key(key, SECTIONS))
    harvest = _section(found, "harvest", KEYS_OF_HARVEST, done)
    _kafka(harvest, done)
    _rest(harvest, done)
    _limits(_section(harvest, "limits", LIMITS, done, "harvest."), done)
    _logging(_section(found, "logging", ("level",), done), done)
    _ours(_section(found, "thresher", KEYS, done), done)
    _defaults(done)
    return done


def _section(found: Mapping[str, Any], name: str, known: Any, done: Translation, prefix: str = "") -> dict[str, Any]:
    section = found.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        done.fault(f"{prefix}{name}", "keys with values are needed under it")
        return {}
    for key in section:
        if key not in known:
            done.fault(f"{prefix}{name}.{key}", no_such_key(str(key), known))
    return {str(key): value for key, value in section.items() if key in known and value is not None}


def _kafka(harvest: Mapping[str, Any], done: Translation) -> None:
    for key, section in (("kafka", "baseKafkaConfig"), ("producer", "producerKafkaConfig")):
        given, theirs = harvest.get(section, {}), f"harvest.{section}"
        if not isinstance(given, Mapping):
            done.fault(theirs, "properties with their values are needed", key)
            continue
        kept = {}
        for name, value in given.items():
            if plain(str(name)) in _BOUNDS_OF_OURS:
                done.remarks.append(f"{theirs}.{name} is accepted without effect: the relay sets it itself")
            else:
                kept[str(name)] = value
        done.give(key, kept, theirs)


def _rest(harvest: Mapping[str, Any], done: Translation) -> None:
    if harvest.get("dataSource"):
        _data_source(harvest["dataSource"], done)
    if table := harvest.get("outboxTable"):
        _table(table, done)
    for theirs, ours in (("leaderTopic", "leader_topic"), ("leaderGroupID", "leader_group")):
        if harvest.get(theirs):
            done.give(ours, harvest[theirs], f"harvest.{theirs}")
    if "name" in harvest:
        done.remarks.append("harvest.name is accepted without effect: leaderGroupID is the relay's identity")


def _defaults(done: Translation) -> None:
    if "data_source" not in done.origin:
        done.keys["data_source"] = _DATA_SOURCE
    kafka = done.keys.get("kafka")
    if isinstance(kafka, dict) and "metadata.broker.list" not in kafka:
        kafka.setdefault("bootstrap.servers", "localhost:9092")


def _table(given: object, done: Translation) -> None:
    # goharvest puts the name into its SQL unchanged: it may have a schema, and is folded to lower case unless quoted.
    parts = _TABLE.fullmatch(given) if isinstance(given, str) else None
    if parts is None:
        done.fault("harvest.outboxTable", f"{shorten(given)} is no name of a table", "outbox")
        return
    done.give("outbox", _folded(parts[2]), "harvest.outboxTable")
    if parts[1]:
        done.give("schema", _folded(parts[1]), "harvest.outboxTable")


def _folded(identifier: str) -> str:
    quoted = identifier.startswith('"')
    return identifier[1:-1].replace('""', '"') if quoted else identifier.lower()


def _data_source(given: object, done: Translation) -> None:
    if not isinstance(given, str):
        # It may be a {file: PATH}.
        done.give("data_source", given, DATA_SOURCE)
        return
    done.give("data_source", from_lib_pq(given), DATA_SOURCE)
    if "://" not in given and re.search(r"\bpassword\s*=\s+\w+\s*=", given):
        done.remarks.append(
            "harvest.dataSource: the text behind 'password=' is read as the password, as goharvest and Postgres do; "
            "write password='' for none"
        )


def demand_tls(done: Translation) -> None:
    """Let a connection string without `sslmode` demand TLS, as goharvest's driver does without PGSSLMODE."""
    given = done.keys.get("data_source")
    if isinstance(given, str) and names_no_sslmode(given):
        done.keys["data_source"] = with_tls(given)
        done.remarks.append(
            f"{DATA_SOURCE} names no sslmode: TLS is required, as in goharvest; write sslmode=verify-full to verify "
            "the server too, or sslmode=disable for none"
        )


def _limits(limits: Mapping[str, Any], done: Translation) -> None:
    for name, value in limits.items():
        limit, theirs = LIMITS[name], f"harvest.limits.{name}"
        read: Callable[[object], float] = _count if limit.counts else seconds_of
        try:
            amount = read(value)
        except ValueError as error:
            done.fault(theirs, str(error), limit.key)
            continue
        if amount < read(int(limit.least) if limit.counts else limit.least):
            done.fault(theirs, f"{value} is less than {limit.least}, the least it can be", limit.key)
        elif limit.key is None:
            done.remarks.append(f"{theirs} is accepted without effect: {limit.instead}")
        else:
            done.give(limit.key, _within_ours(theirs, amount, limit, done), theirs)


def _within_ours(theirs: str, amount: float, limit: Limit, done: Translation) -> float:
    if limit.counts:
        if amount > _MOST_ROWS:
            done.remarks.append(f"{theirs} is taken for {_MOST_ROWS}, the most that one progress record holds")
        return int(min(amount, _MOST_ROWS))
    return max(amount, _SHORTEST_SECONDS)


def _count(value: object) -> float:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number is needed")  # noqa: TRY004 - the value is wrong, of whatever type
    return value


def _logging(logging: Mapping[str, Any], done: Translation) -> None:
    if "level" not in logging:
        return
    # YAML reads a bare `off` as false.
    given = "off" if logging["level"] is False else logging["level"]
    level = _LEVELS.get(given.lower()) if isinstance(given, str) else None
    if level is None:
        known = [name.capitalize() for name in _LEVELS]
        done.fault("logging.level", f"one of {', '.join(known)} is needed", "log_level")
    else:
        done.give("log_level", level, "logging.level")


def _ours(thresher: Mapping[str, Any], done: Translation) -> None:
    for key, value in thresher.items():
        ours = f"thresher.{key}"
        before = done.origin.get(key)
        if key in {"kafka", "producer"} and isinstance(value, Mapping) and isinstance(done.keys.get(key), dict):
            for name in sorted(set(value) & set(done.keys[key])):
                done.fault(f"{ours}.{name}", f"{before} sets it too: remove one of them")
            done.keys[key].update(value)
        elif before is not None:
            done.fault(ours, f"{before} sets it too: remove one of them")
        else:
            done.give(key, value, ours)


def forget_unelected(done: Translation, keys: dict[str, Any]) -> None:
    """Remove the keys of goharvest's election if another kind is chosen: they are no contradiction."""
    election = keys.get("election")
    if election is None or election == ElectionKind.NELI:
        return
    for key, kind in OF_ELECTION.items():
        if kind is ElectionKind.NELI and done.origin.get(key, "").startswith("harvest.") and key in keys:
            del keys[key]
            done.remarks.append(f"{done.origin[key]} is accepted without effect: election is {election}")


def keep_partitions(keys: dict[str, Any]) -> None:
    """Use goharvest's partitioner unless one is given, so that the rows of each key stay in their partition.

    Only the empty key differs: goharvest scatters its rows, and here they get one partition.
    """
    kafka, producer = keys.get("kafka"), keys.get("producer", {})
    if isinstance(kafka, Mapping) and isinstance(producer, Mapping) and "partitioner" not in {*kafka, *producer}:
        keys["producer"] = {**producer, "partitioner": "consistent"}
