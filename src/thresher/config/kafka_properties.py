"""Checks a form's sections of librdkafka properties with librdkafka itself. No server is contacted.

librdkafka checks each property alone, so that every mistake is reported, and then all of them together. A property
that the pipeline sets itself, because a guarantee depends on it, is refused.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from thresher.config.form import Rule
from thresher.config.report import Problem, no_such_key
from thresher.core.errors import shorten
from thresher.core.secrets import revealed, revealed_properties
from thresher.kafka.property import PROPERTIES, plain, without_value

# With the property `debug`, a client without a logger writes to standard error. This logger drops it.
_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
SERVERS = frozenset({"bootstrap.servers", "metadata.broker.list"})
# Files that a client reads when it is created. We check them first: our message is plainer than librdkafka's.
_FILES = frozenset(
    {"ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"}
)
_NO_PROPERTY = "no.property.has.this.name"
_ADDRESS = re.compile(r"(\w+://)?(\[[0-9a-fA-F:.%]+\]|[^\s:/,\[\]]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSections:
    """The sections of a form whose properties are checked together. The first section names the broker.

    If the form has its own key for the broker, `servers_key` is that key, and the sections must not name the broker.
    """

    sections: tuple[str, ...]
    # Properties that a configuration may not set, and the reason, which may depend on the form.
    guarded: Set[str]
    guarded_because: Callable[[Any], str]
    # Returns all properties of a producer, from the configured ones.
    producer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    servers_key: str | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for the form."""
        return (
            Rule(frozenset(), self._leave_guarantees_alone),
            *([] if self.servers_key else [Rule(frozenset(self.sections[:1]), self._name_a_broker)]),
            Rule(frozenset(), self._exist),
            Rule(frozenset(self.sections), self._agree),
        )

    def _leave_guarantees_alone(self, form: Any, _: Mapping[str, Any]) -> Iterator[Problem]:
        for section, name, _value in self._properties_of(form):
            if self.servers_key and name in SERVERS:
                yield f"{section}.{name}", f"the broker is named by '{self.servers_key}'"
            elif self._is_guarded(name):
                yield f"{section}.{name}", self.guarded_because(form)

    def _name_a_broker(self, form: Any, _: Mapping[str, Any]) -> Iterator[Problem]:
        section = self.sections[0]
        given = getattr(form, section)
        servers = str(revealed(given.get("bootstrap.servers", "")))
        if not given:
            # The form declares whether the section itself is required.
            return
        if not servers:
            yield section, "'bootstrap.servers' is missing: where is the broker?"
        elif why := wrong_servers(servers):
            yield f"{section}.bootstrap.servers", why

    def _exist(self, form: Any, _: Mapping[str, Any]) -> Iterator[Problem]:
        for section, name, value in self._properties_of(form):
            if not self._is_guarded(name) and (why := wrong_alone(name, value)):
                yield f"{section}.{name}", why

    def _agree(self, form: Any, _: Mapping[str, Any]) -> Iterator[Problem]:
        given = {name: (section, value) for section, name, value in self._properties_of(form)}
        # Without servers, so that the client connects to nothing.
        trial = {
            name: value
            for name, (_section, value) in given.items()
            if name not in SERVERS and not self._is_guarded(name) and not wrong_alone(name, value)
        }
        try:
            Producer(revealed_properties({**self.producer(trial), "log_level": 0}), logger=_logger)
        except KafkaException as error:
            why = str(error.args[0].str()).removeprefix("Failed to create producer: ")
            named = [name for name in trial if re.search(rf"(?<![\w.]){re.escape(plain(name))}(?![\w.])", why)]
            yield f"{given[named[0]][0]}.{named[0]}" if named else self.sections[0], why

    def _properties_of(self, form: Any) -> Iterator[tuple[str, str, Any]]:
        for section in self.sections:
            given = getattr(form, section)
            for name in sorted(given):
                yield section, name, given[name]

    def _is_guarded(self, name: str) -> bool:
        return plain(name) in self.guarded


def wrong_servers(servers: str) -> str:
    """Return the problem of a list of brokers; an empty text if there is none."""
    if all(_ADDRESS.fullmatch(part.strip()) for part in servers.split(",")):
        return ""
    return "HOST:PORT is needed, or several, separated by commas"


def brokers_of(given: Any) -> frozenset[str]:
    """Return the addresses of brokers that a section of properties, or a text, names."""
    if isinstance(given, Mapping):
        given = ",".join(str(revealed(given[name])) for name in SERVERS if name in given)
    return frozenset(filter(None, (each.strip().lower() for each in str(given).split(","))))


def with_one_name_for_servers(given: dict[str, Any]) -> dict[str, Any]:
    """Return properties with `bootstrap.servers` for both its names. Raises `ValueError` if both names are given."""
    if "metadata.broker.list" not in given:
        return given
    if "bootstrap.servers" in given:
        raise ValueError("bootstrap.servers and metadata.broker.list are the same: remove one of them")
    return {"bootstrap.servers" if name in SERVERS else name: value for name, value in given.items()}


def wrong_alone(name: str, given: Any) -> str:
    """Return the problem of a property by itself; an empty text if there is none."""
    value = revealed(given)
    if name in _FILES and value != "probe" and not Path(str(value)).exists():
        return f"there is no file {shorten(value)}"
    try:
        # The second property does not exist, so that no client is created.
        Producer({name: value, _NO_PROPERTY: ""})
    except KafkaException as error:
        why = str(error.args[0].str())
        if f'"{_NO_PROPERTY}"' in why:
            return ""
        if why.startswith("No such"):
            return no_such_key(name, PROPERTIES)
        return without_value(why)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""
