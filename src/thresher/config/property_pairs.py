"""Parses the `property=value` pairs of flags. Imports no pydantic, so that every command can use it."""

from collections.abc import Sequence

from thresher.core.errors import InvalidInput, shorten


def properties(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Return the properties with their values. Raises `InvalidInput`, which names the flag and contains no value."""
    pairs = [each.partition("=") for each in given or ()]
    # A value may be a secret: repeat only the text before the =, and nothing if there is no =.
    if wrong := [shorten(name) if sign else "one without =" for name, sign, _ in pairs if not (name and sign)]:
        raise InvalidInput(f"{flag}: key=value is expected, not {', '.join(wrong)}")
    return {name.strip(): value for name, _, value in pairs}
