"""What environment variables say of a configuration.

Every key has one, `THRESHER_<KEY>`, and so has every property of Kafka's clients: `THRESHER_KAFKA_SASL_PASSWORD` is
`sasl.password` of `kafka`, `THRESHER_PRODUCER_LINGER_MS` is `linger.ms` of `producer`. With `_FILE` behind it, a data
source's or a property's variable names a file that holds the value. Lists are separated by blanks, and an empty
variable says nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.harvest.form import KEYS, Problem, nearest
from thresher.kafka.property import PROPERTIES, in_environment

_PREFIX, _FILE = "THRESHER_", "_FILE"
# Under which names a key is there besides.
_SHORT = {"DS": "data_source"}
_LISTS = frozenset({"transform", "spark_archives", "spark_py_files"})
_PROPERTIES = ("kafka", "producer", "spark")
_CLIENTS = ("kafka", "producer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the environment says in our keys, what is wrong with it, and what is worth a remark."""

    keys: dict[str, Any] = field(default_factory=dict, repr=False)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def put(self, variable: str, value: Any, key: str, name: str | None = None) -> None:
        """Note the value of a key, or of a property of it; one that was there before is a problem."""
        place, last = (self.keys, key) if name is None else (self.keys.setdefault(key, {}), name)
        if last in place:
            what = key if name is None else f"{key}.{name}"
            self.problems.append((variable, f"there is another variable for {what}: one of them has to go"))
        place[last] = value


def from_environment(environment: Mapping[str, str]) -> Said:
    """Read every variable that is ours, in the order of their names."""
    said = Said()
    for variable, value in sorted(environment.items()):
        if not variable.startswith(_PREFIX) or not value:
            continue
        rest = variable.removeprefix(_PREFIX)
        bare = rest.removesuffix(_FILE)
        key = _SHORT.get(rest, rest.lower())
        if rest == "BOOTSTRAP":
            said.put(variable, value, "kafka", "bootstrap.servers")
        elif key in _PROPERTIES:
            _several(variable, value, key, said)
        elif key in KEYS:
            said.put(variable, value.split() if key in _LISTS else value, key)
        elif bare != rest and _SHORT.get(bare, bare.lower()) == "data_source":
            said.put(variable, {"file": value}, "data_source")
        elif (client := rest.partition("_")[0].lower()) in _CLIENTS:
            _one(variable, value, client, said)
    return said


def _several(variable: str, value: str, key: str, said: Said) -> None:
    for pair in value.split():
        name, sign, text = pair.partition("=")
        if name and sign:
            said.put(variable, text, key, name)
        else:
            said.problems.append((variable, "property=value is needed, separated by blanks"))


def _one(variable: str, value: str, client: str, said: Said) -> None:
    suffix = variable.removeprefix(_PREFIX).partition("_")[2]
    if (name := in_environment(suffix)) is not None:
        said.put(variable, value, client, name)
    elif suffix.endswith(_FILE) and (name := in_environment(suffix.removesuffix(_FILE))) is not None:
        said.put(variable, {"file": value}, client, name)
    else:
        # Kubernetes puts the addresses of its services there, under names that may look like ours.
        known = [f"{_PREFIX}{client}_{each}".upper().replace(".", "_") for each in PROPERTIES]
        said.remarks.append(f"{variable} is not read: Kafka's clients have no such property{nearest(variable, known)}")
