"""The environment variables of a form.

1. Every key has the variable `THRESHER_<KEY>`. Items of a list are separated by blanks. An empty variable is ignored.
2. The variable of a section holds `property=value` pairs, separated by blanks. Each property of a Kafka client also has
   its own variable: `THRESHER_KAFKA_SASL_PASSWORD` is `sasl.password` of `kafka`.
3. For secrets and for properties of Kafka clients, a variable with the suffix `_FILE` names a file with the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from thresher.config.known_variables import PREFIX, misspelt
from thresher.config.report import Problem, nearest
from thresher.config.setting import Kind, Setting, Shorthand, settings_of
from thresher.kafka.property import PROPERTIES, in_environment

_FILE = "_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """The values from the environment by the form's keys, with problems and remarks."""

    keys: dict[str, Any] = field(default_factory=dict, repr=False)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def put(self, variable: str, value: Any, key: str, name: str | None = None) -> None:
        """Set the value of a key, or of one of its properties. A second variable for the same value is a problem."""
        place, last = (self.keys, key) if name is None else (self.keys.setdefault(key, {}), name)
        if last in place:
            what = key if name is None else f"{key}.{name}"
            self.problems.append((variable, f"another variable sets {what} too: remove one of them"))
        place[last] = value


def from_environment(form: type[BaseModel], environment: Mapping[str, str]) -> Variables:
    """Read every variable of the form, in the order of their names."""
    settings = settings_of(form)
    by_variable = {variable: setting for setting in settings for variable in setting.variables}
    shorthands = {each.name.upper(): (setting.key, each) for setting in settings for each in setting.shorthands}
    found = Variables()
    unset = {*by_variable, *shorthands} - {name.removeprefix(PREFIX).upper() for name in environment}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not value:
            continue
        # Like the names of keys, in any case.
        rest = variable.removeprefix(PREFIX).upper()
        of_file = by_variable.get(rest.removesuffix(_FILE)) if rest.endswith(_FILE) else None
        client = by_variable.get(rest.partition("_")[0])
        if rest in shorthands:
            key, shorthand = shorthands[rest]
            found.put(variable, value, key, shorthand.property_name)
        elif rest in by_variable:
            _key(variable, value, by_variable[rest], found)
        elif of_file is not None and of_file.secret is not None:
            found.put(variable, {"file": value}, of_file.key)
        elif client is not None and client.section is not None and client.section.of_kafka_client:
            _property(variable, value, client.key, found)
        elif remark := misspelt(variable, unset):
            found.remarks.append(remark)
    return found


def variable_of(setting: Setting | Shorthand) -> str:
    """Return the environment variable that help and docs show."""
    return PREFIX + (setting.variables[0] if isinstance(setting, Setting) else setting.name.upper())


def _key(variable: str, value: str, setting: Setting, found: Variables) -> None:
    if setting.kind is not Kind.SECTION:
        found.put(variable, value.split() if setting.kind is Kind.LIST else value, setting.key)
        return
    for pair in value.split():
        name, sign, text = pair.partition("=")
        if name and sign:
            found.put(variable, text, setting.key, name)
        else:
            found.problems.append((variable, "property=value is needed, separated by blanks"))


def _property(variable: str, value: str, section: str, found: Variables) -> None:
    suffix = variable.removeprefix(PREFIX).upper().partition("_")[2]
    if (name := in_environment(suffix)) is not None:
        found.put(variable, value, section, name)
    elif suffix.endswith(_FILE) and (name := in_environment(suffix.removesuffix(_FILE))) is not None:
        found.put(variable, {"file": value}, section, name)
    else:
        # Only a remark: Kubernetes sets variables with the addresses of services, whose names may look like ours.
        known = [f"{PREFIX}{section}_{each}".upper().replace(".", "_") for each in PROPERTIES]
        found.remarks.append(f"{variable} is not read: Kafka's clients have no such property{nearest(variable, known)}")
