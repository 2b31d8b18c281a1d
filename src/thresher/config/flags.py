"""Generates the command-line flags of a form as values, and turns the flags' values into the form's keys.

The module imports no parser of command lines: the caller makes its options from the flags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from thresher.config.environment import variable_of
from thresher.config.property_pairs import properties
from thresher.config.setting import Kind, Setting, settings_of
from thresher.config.wording import default_text, first_sentence, one_of, range_text

_TYPES: dict[Kind, Any] = {
    Kind.TEXT: str,
    Kind.WHOLE_NUMBER: int,
    Kind.NUMBER: float,
    Kind.SWITCH: bool,
    Kind.LIST: list[str],
    Kind.SECTION: list[str],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag: it sets a key, or, with `property_name`, one property of a section."""

    # An identifier, unique within the form.
    name: str
    key: str
    property_name: str | None = None
    names: tuple[str, ...]
    kind: Kind
    variable: str
    help: str

    @property
    def value_type(self) -> Any:
        """The Python type of its value."""
        return _TYPES[self.kind]


def flags_of(form: type[BaseModel]) -> tuple[Flag, ...]:
    """Return the flags in the order of the form; the shorthands of a section come before it."""
    return tuple(flag for setting in settings_of(form) for flag in (*_shorthands(setting), _flag(setting)))


def keys_from(flags: Sequence[Flag], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the form's keys, from the values of flags by name. An absent flag has the value None.

    Raises `InvalidInput` for a property without a value.
    """
    keys: dict[str, Any] = {}
    for flag in flags:
        value = values.get(flag.name)
        if flag.kind is Kind.SECTION:
            keys[flag.key] = {**properties(value, flag.names[0]), **keys.get(flag.key, {})}
        elif flag.property_name is not None:
            keys.setdefault(flag.key, {}).update({flag.property_name: value} if value is not None else {})
        else:
            # An absent flag has an empty list, which must not override the file.
            keys[flag.key] = (value or None) if flag.kind is Kind.LIST else value
    return keys


def _shorthands(setting: Setting) -> list[Flag]:
    return [
        Flag(
            name=each.name,
            key=setting.key,
            property_name=each.property_name,
            names=(f"--{each.name}",),
            kind=Kind.TEXT,
            variable=variable_of(each),
            help=each.description,
        )
        for each in setting.shorthands
    ]


def _flag(setting: Setting) -> Flag:
    return Flag(
        name=setting.key.replace("-", "_"),
        key=setting.key,
        names=setting.flags,
        kind=setting.kind,
        variable=variable_of(setting),
        help=_help(setting),
    )


def _help(setting: Setting) -> str:
    sentence = first_sentence(setting).replace("`", "")
    if setting.choices:
        sentence += f": {one_of(setting.choices)}"
    elif setting.bounds.least is not None and setting.bounds.most is not None:
        sentence += f", {range_text(setting.bounds)}"
    elif setting.kind is Kind.SECTION:
        sentence += ", as property=value; may be repeated"
    elif setting.kind is Kind.LIST:
        sentence += "; may be repeated"
    elif setting.secret is not None:
        sentence += f"; {variable_of(setting)}_FILE names a file that holds it"
    default = default_text(setting).replace("`", "")
    return f"{sentence}." + (f" (default: {default})" if default else "")
