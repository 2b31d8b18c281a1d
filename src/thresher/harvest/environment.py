"""What environment variables say of a configuration.

Every key has one, `THRESHER_<KEY>`, and so has every property of Kafka's clients: `THRESHER_KAFKA_SASL_PASSWORD` is
`sasl.password` of `kafka`, `THRESHER_PRODUCER_LINGER_MS` is `linger.ms` of `producer`. With `_FILE` behind it, a data
source's or a property's variable names a file that holds the value. Lists are separated by blanks, and an empty
variable says nothing.
"""

from collections.abc import Mapping
from typing import Any

from thresher.harvest.form import KEYS, Problem, nearest
from thresher.kafka.property import PROPERTIES, in_environment

_PREFIX = "THRESHER_"
_FILE = "_FILE"
# Under which names a key is there besides.
_SHORT = {"DS": "data_source"}
_LISTS = frozenset({"transform", "spark_archives", "spark_py_files"})
_PROPERTIES = ("kafka", "producer", "spark")
_CLIENTS = ("kafka", "producer")


def from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem], list[str]]:
    """Return what it says in our keys, what is wrong with it, and what is worth a remark."""
    said: dict[str, Any] = {}
    problems: list[Problem] = []
    remarks: list[str] = []
    variables = {name: value for name, value in sorted(environment.items()) if name.startswith(_PREFIX) and value}
    for variable, value in variables.items():
        rest = variable.removeprefix(_PREFIX)
        key = _SHORT.get(rest, rest.lower())
        if rest == "BOOTSTRAP":
            said.setdefault("kafka", {})["bootstrap.servers"] = value
        elif key in _PROPERTIES:
            pairs = [pair.partition("=") for pair in value.split()]
            said.setdefault(key, {}).update({name: text for name, sign, text in pairs if sign and name})
            if not all(sign and name for name, sign, _ in pairs):
                problems.append((variable, "property=value is needed, separated by blanks"))
        elif key in KEYS:
            if key in said:
                problems.append((variable, f"there is another variable for {key}: one of them has to go"))
            said[key] = value.split() if key in _LISTS else value
        elif (
            rest.endswith(_FILE)
            and _SHORT.get(rest.removesuffix(_FILE), rest.removesuffix(_FILE).lower()) == "data_source"
        ):
            if "data_source" in said:
                problems.append((variable, "there is another variable for data_source: one of them has to go"))
            said["data_source"] = {"file": value}
        elif (client := rest.partition("_")[0].lower()) in _CLIENTS:
            _property(client, variable, value, said, problems, remarks)
    return said, problems, remarks


def _property(
    client: str, variable: str, value: str, said: dict[str, Any], problems: list[Problem], remarks: list[str]
) -> None:
    suffix = variable.removeprefix(_PREFIX).partition("_")[2]
    name, given = in_environment(suffix), value if in_environment(suffix) else {"file": value}
    if name is None and suffix.endswith(_FILE):
        name = in_environment(suffix.removesuffix(_FILE))
    if name is None:
        # Kubernetes puts the addresses of its services there, under names that may look like ours.
        known = [f"{_PREFIX}{client}_{each}".upper().replace(".", "_") for each in PROPERTIES]
        remarks.append(f"{variable} is not read: Kafka's clients have no such property{nearest(variable, known)}")
        return
    properties = said.setdefault(client, {})
    if name in properties:
        problems.append((variable, f"there is another variable for {client}.{name}: one of them has to go"))
    properties[name] = given
