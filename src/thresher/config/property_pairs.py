"""Properties as flags have them, `property=value`. Imports no pydantic: every command may use it."""

from collections.abc import Sequence

from thresher.core.errors import InvalidInput, shorten


def properties(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Return the properties with their values. Raises `InvalidInput` with the flag's name, and with no value."""
    pairs = [each.partition("=") for each in given or ()]
    # A value may be a secret: only the text before the sign is repeated, and nothing where there is no sign.
    if wrong := [shorten(name) if sign else "one without =" for name, sign, _ in pairs if not (name and sign)]:
        raise InvalidInput(f"{flag}: key=value is expected, not {', '.join(wrong)}")
    return {name.strip(): value for name, _, value in pairs}
