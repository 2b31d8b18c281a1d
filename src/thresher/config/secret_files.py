"""The secrets of a configuration: reads those in files, and finds those among the other values.

A setting with the mark `HoldsSecrets` and every property of a Kafka client may be `{file: /path}`. The content of such
a file is a secret. So are passwords in connection strings and URLs, and properties with the name of a secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from thresher.config.report import Problem
from thresher.config.setting import sections_of, settings_of
from thresher.core.secrets import (
    Secret,
    Secrets,
    Unreadable,
    is_secret,
    read_secret,
    revealed,
    secrets_in_url,
    shown_property,
)


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """The named files by key, their contents, and problems of files that could not be read."""

    paths: dict[str, Any] = field(default_factory=dict)
    contents: list[str] = field(default_factory=list, repr=False)
    problems: list[Problem] = field(default_factory=list)

    def content(self, key: str, value: Any) -> Any:
        """Return the content of the file that a value names, as a `Secret`, or the value itself if it names no file."""
        if not isinstance(value, Mapping) or set(value) != {"file"}:
            return value
        self.paths[key] = value["file"]
        try:
            text = read_secret(value["file"])
        except Unreadable as error:
            self.problems.append((key, str(error)))
            return ""
        self.contents.append(text)
        return Secret(text)


def read_files(form: type[BaseModel], given: dict[str, Any]) -> SecretFiles:
    """Replace each named file in `given` by its content."""
    files = SecretFiles()
    for setting in settings_of(form):
        key, value = setting.key, given.get(setting.key)
        if setting.section is not None and setting.section.of_kafka_client and isinstance(value, Mapping):
            given[key] = {name: files.content(f"{key}.{name}", each) for name, each in value.items()}
        elif setting.secret is not None and key in given:
            given[key] = files.content(key, value)
    return files


def secrets_of(form: type[BaseModel], given: Mapping[str, Any], files: SecretFiles) -> Secrets:
    """Return every secret among the given values, even in a malformed configuration."""
    found = list(files.contents)
    for setting in settings_of(form):
        value = given.get(setting.key)
        if setting.secret is not None and value is not None:
            found += setting.secret.secrets_in(_text(value))
        elif setting.section is not None and isinstance(value, Mapping):
            for name, each in value.items():
                found += [_text(each)] if is_secret(str(name)) else []
                found += secrets_in_url(_text(each))
    return Secrets(found)


def _text(value: Any) -> str:
    return revealed(value) if isinstance(value, Secret) else str(value)


def without_secrets(form: type[BaseModel], shown: Mapping[str, Any], files: SecretFiles) -> dict[str, Any]:
    """Return the values of a form for people: secrets are masked, and files are shown by their paths."""
    result = dict(shown)
    for setting in settings_of(form):
        key = setting.key
        if key in files.paths:
            result[key] = {"file": files.paths[key]}
    for key in sections_of(form):
        result[key] = {name: _shown(f"{key}.{name}", name, value, files) for name, value in result[key].items()}
    return result


def _shown(key: str, name: str, value: Any, files: SecretFiles) -> Any:
    return {"file": files.paths[key]} if key in files.paths else shown_property(name, value)
