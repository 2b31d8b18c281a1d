"""Reads a YAML file as it was meant: keys with values, and no key twice."""

import re
from pathlib import Path
from typing import Any

import yaml

from thresher.config.problem import ConfigurationInvalid


class _Twice(yaml.constructor.ConstructorError):
    """A key that was given before."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but two equal keys are an error: PyYAML lets the last one win."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, str):
                if name in seen:
                    raise _Twice(None, None, f"the key {name!r} is there twice", key.start_mark)
                seen.add(name)
        return super().construct_mapping(node, deep=deep)


def read(path: Path) -> dict[str, Any]:
    """Return the keys and values of a file. Raises `ConfigurationInvalid` with file, line and reason, and no value."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - it is a safe one
    except OSError as error:
        raise ConfigurationInvalid(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise ConfigurationInvalid(f"{path} cannot be read: it is not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationInvalid(f"{path}{where}: not YAML: {_reason(error)}") from None
    except (ValueError, RecursionError):
        # A date that is none, a number that is too long, a tree that is too deep.
        raise ConfigurationInvalid(f"{path} cannot be read: a value in it is malformed") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigurationInvalid(f"{path}: keys with values are needed at the top")
    return {str(key): value for key, value in found.items()}


# A text in quotes, as the parser writes one; and a character, a sign of the language, or what it calls an end.
_QUOTED = re.compile(r"""(['"])((?:\\.|(?!\1).)*)\1""")
_SINGLE = re.compile(r"\\?.|\\x..|<[a-z ]+>")


def _reason(error: yaml.YAMLError) -> str:
    reason = str(getattr(error, "problem", None) or "malformed")
    if isinstance(error, _Twice):
        return reason
    # A text in quotes may be a secret that should have been in quotes itself.
    return _QUOTED.sub(lambda found: found[0] if _SINGLE.fullmatch(found[2]) else "it", reason)
