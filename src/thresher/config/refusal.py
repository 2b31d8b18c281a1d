"""The reason why a value is refused: what is needed, and what was given, if that cannot be a secret.

A password at the wrong place must not be repeated: a text is shown only if it looks like a number.
"""

import re
from collections.abc import Mapping
from typing import Any

from thresher.config.report import nearest
from thresher.config.setting import Kind, Setting
from thresher.config.wording import one_of, range_text
from thresher.core.errors import shorten

NO_PROPERTIES = "properties with their values are needed"
_NEEDED = {
    Kind.TEXT: "a text",
    Kind.WHOLE_NUMBER: "a whole number",
    Kind.NUMBER: "a number",
    Kind.SWITCH: "true or false",
    Kind.LIST: "a text or a list of them",
}
_OUT_OF_BOUNDS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
# It may have a unit: 5s, 10 %, 1,000.
_LIKE_A_NUMBER = re.compile(r"[-+]?[0-9.,_]{1,12} ?[a-zA-Z%]{0,3}")


def why_refused(setting: Setting, error: Mapping[str, Any]) -> str:
    """Return why a key's value was refused, from pydantic's error. The message of our own validators is kept."""
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    given = error["input"]
    if setting.secret is not None:
        return "a text is needed, or {file: PATH}"
    if setting.choices:
        return f"{one_of(setting.choices)} is needed{nearest(str(given), setting.choices)}"
    if error["type"] in _OUT_OF_BOUNDS:
        return f"{range_text(setting.bounds)} is needed, not {_shown(given)}"
    # The error is about one item of a list.
    kind = Kind.TEXT if len(error["loc"]) > 1 else setting.kind
    return f"{_NEEDED[kind]} is needed, not {_shown(given)}" if kind in _NEEDED else NO_PROPERTIES


def needs_a_number(setting: Setting, value: object) -> str:
    """Return why true or false is refused for a number, although Python takes them for 1 and 0; else an empty text."""
    if not isinstance(value, bool) or setting.kind not in {Kind.WHOLE_NUMBER, Kind.NUMBER}:
        return ""
    return f"{_NEEDED[setting.kind]} is needed, not {_shown(value)}"


def _shown(given: object) -> str:
    match given:
        case None | bool() | int() | float():
            return shorten(given)
        case str():
            return shorten(given) if _LIKE_A_NUMBER.fullmatch(given) else "a text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "keys with values"
        case _:
            return f"a {type(given).__name__}"
