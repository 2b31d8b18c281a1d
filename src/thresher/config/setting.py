"""A setting, declared once: as a field of a pydantic form, with default, bounds, description and the marks below.

1. `settings_of` reads the fields. Flags, environment variables, the table in the docs and the search for secrets are
   generated from its result.
2. Every field has a default, so that a missing key is reported together with all other problems. The mark `Required`
   makes a key mandatory.
3. The first sentence of a description is the help of the flag; the table has the whole description.
"""

import enum
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Mark: flags of a setting, and its environment variable without prefix, that are not derived from its key."""

    flags: tuple[str, ...] = ()
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class DefaultText:
    """Mark: the description of a default that is computed later."""

    text: str


@dataclass(frozen=True, slots=True)
class Required:
    """Mark: a value is required; the report gives the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class HoldsSecrets:
    """Mark of a `Secret`: it may be in a file, and `secrets_in` finds the parts of its content to mask in texts."""

    secrets_in: Callable[[str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Servers:
    """Mark: the value names servers. `of` returns their names, without secrets. See `contradiction`."""

    of: Callable[[Any], frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Mark: properties with values. The file, the environment and flags can set each property by itself.

    Each property of a Kafka client has its own variable, and may be read from a file.
    """

    of_kafka_client: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorthand:
    """Mark: a flag and a variable for one property of a section."""

    name: str
    property_name: str
    description: str


class Kind(enum.Enum):
    """The type of a setting's value, as a flag takes it."""

    TEXT = enum.auto()
    WHOLE_NUMBER = enum.auto()
    NUMBER = enum.auto()
    SWITCH = enum.auto()
    LIST = enum.auto()
    SECTION = enum.auto()


_KINDS = {bool: Kind.SWITCH, int: Kind.WHOLE_NUMBER, float: Kind.NUMBER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a number, if any. `least` and `most` are allowed values; `above` and `below` are not."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one key."""

    key: str
    kind: Kind
    description: str
    default: Any
    default_text: str | None
    choices: tuple[str, ...]
    bounds: Bounds
    # In upper case, without prefix. Help and docs show the first.
    variables: tuple[str, ...]
    flags: tuple[str, ...]
    required: Required | None
    secret: HoldsSecrets | None
    servers: Servers | None
    section: Section | None
    shorthands: tuple[Shorthand, ...]


@cache
def settings_of(form: type[BaseModel]) -> tuple[Setting, ...]:
    """Return the settings of a form in its order. Raises `TypeError` for a field that is not declared as above."""
    return tuple(_setting(info.alias or name, info) for name, info in form.model_fields.items())


def keys_of(form: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys of a form in its order."""
    return tuple(setting.key for setting in settings_of(form))


def sections_of(form: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that are sections of properties."""
    return tuple(setting.key for setting in settings_of(form) if setting.section is not None)


def _setting(key: str, info: Any) -> Setting:
    if info.is_required():
        raise TypeError(f"{key}: a setting needs a default; mark it Required if a value must be given")
    if not info.description:
        raise TypeError(f"{key}: a setting needs a description")
    names = _mark(info, Names) or Names()
    default_text = _mark(info, DefaultText)
    section = _mark(info, Section)
    own_variable = (names.variable,) if names.variable else ()
    return Setting(
        key=key,
        kind=Kind.SECTION if section else _kind(info.annotation),
        description=info.description,
        default=info.get_default(call_default_factory=True),
        default_text=default_text.text if default_text else None,
        choices=_choices(info.annotation),
        bounds=_bounds(info),
        variables=(*own_variable, key.upper().replace("-", "_")),
        flags=names.flags or (f"--{key.replace('_', '-')}",),
        required=_mark(info, Required),
        secret=_mark(info, HoldsSecrets),
        servers=_mark(info, Servers),
        section=section,
        shorthands=tuple(mark for mark in info.metadata if isinstance(mark, Shorthand)),
    )


def _mark(info: Any, kind: type[Any]) -> Any:
    return next((mark for mark in info.metadata if isinstance(mark, kind)), None)


def _bounds(info: Any) -> Bounds:
    least, above, most, below = (_mark(info, kind) for kind in (Ge, Gt, Le, Lt))
    return Bounds(least=least and least.ge, above=above and above.gt, most=most and most.le, below=below and below.lt)


def _kind(annotation: Any) -> Kind:
    alone = _alone(annotation)
    if get_origin(alone) in {tuple, list}:
        return Kind.LIST
    return _KINDS.get(alone, Kind.TEXT)


def _choices(annotation: Any) -> tuple[str, ...]:
    alone = _alone(annotation)
    if not isinstance(alone, type) or not issubclass(alone, enum.Enum):
        return ()
    return tuple(str(choice.value) for choice in alone)


def _alone(annotation: Any) -> Any:
    """Return the type of an optional one."""
    if get_origin(annotation) not in {Union, types.UnionType}:
        return annotation
    rest = [each for each in get_args(annotation) if each is not types.NoneType]
    return rest[0] if len(rest) == 1 else str
