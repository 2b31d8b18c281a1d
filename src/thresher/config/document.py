"""Reads a YAML file of keys with values. A key that is given twice is an error."""

import re
from pathlib import Path
from typing import Any

import yaml

from thresher.config.problem import ConfigurationInvalid


class _Twice(yaml.constructor.ConstructorError):
    """A key is given twice."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but a repeated key is an error. PyYAML itself takes the last one."""

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
        # An impossible date, a number that is too long, a tree that is too deep.
        raise ConfigurationInvalid(f"{path} cannot be read: a value in it is malformed") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigurationInvalid(f"{path}: keys with values are needed at the top")
    return {str(key): value for key, value in found.items()}


# A quoted text in a parser's message; and the quoted texts that cannot be a value: one character, or an end token.
_QUOTED = re.compile(r"""(['"])((?:\\.|(?!\1).)*)\1""")
_SINGLE = re.compile(r"\\?.|\\x..|<[a-z ]+>")


def _reason(error: yaml.YAMLError) -> str:
    reason = str(getattr(error, "problem", None) or "malformed")
    if isinstance(error, _Twice):
        return reason
    # A quoted text may be a part of a secret, whose own quotes are missing in the file.
    return _QUOTED.sub(lambda found: found[0] if _SINGLE.fullmatch(found[2]) else "it", reason)
