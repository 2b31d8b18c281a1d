"""Refuses an environment whose servers are not those of the file.

The environment overrides the file key by key. For a database or a broker that would mean the data of another place: a
variable that was left from other work must not decide whose rows are deleted. The same place under another user or with
a password is no contradiction. A flag, or --stack, chooses on purpose.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from thresher.config.environment import variable_of
from thresher.config.report import Problem
from thresher.config.setting import Servers, settings_of
from thresher.core.secrets import Unreadable, read_secret


def contradictions(
    form: type[BaseModel], in_file: Mapping[str, Any], in_environment: Mapping[str, Any], chosen: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem for each key whose chosen value is the environment's, and names other servers than the file's."""
    for setting in settings_of(form):
        servers, key = setting.servers, setting.key
        if servers is None:
            continue
        ours, theirs = _named(servers, in_file.get(key)), _named(servers, in_environment.get(key))
        if ours and theirs and not ours & theirs and _named(servers, chosen.get(key)) == theirs:
            variable = variable_of(setting.shorthands[0] if setting.shorthands else setting)
            both = f"the file names {_listed(ours)}, and the environment names {_listed(theirs)}"
            yield key, f"{both}: unset {variable}, or choose one by a flag"


def _named(servers: Servers, value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    try:
        if isinstance(value, Mapping) and set(value) == {"file"}:
            value = read_secret(value["file"])
        return servers.of(value)
    except (Unreadable, ValueError, TypeError, AttributeError):
        # The value has a problem that is reported by itself.
        return frozenset()


def _listed(servers: frozenset[str]) -> str:
    return ", ".join(sorted(servers))
