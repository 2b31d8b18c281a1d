"""The names of the client's properties: to suggest the nearest name, and to find a property in the environment."""

import re
from importlib import resources

# The properties of librdkafka 2.16 that a file can hold. librdkafka itself checks names and values: a property that is
# missing here works, but is never suggested.
PROPERTIES = tuple(resources.files(__package__).joinpath("properties.txt").read_text(encoding="ascii").split())
_BY_PLAIN_NAME = {re.sub(r"[._-]", ".", name): name for name in PROPERTIES}
# The client accepts this prefix before a topic's property.
_TOPIC = "topic."


def plain(name: str) -> str:
    """Return a property's name without the prefix that the client removes."""
    bare = name.removeprefix(_TOPIC)
    return bare if bare != name and name not in PROPERTIES else name


def without_value(why: str) -> str:
    """Return librdkafka's reason for a refusal without the value that it repeats, perhaps in part.

    A secret may be at the wrong place.
    """
    return re.sub(r'Invalid value ".*" for', "this is no value for", why, flags=re.DOTALL)


def in_environment(variable: str) -> str | None:
    """Return the property that an environment variable names, such as sasl.password for SASL_PASSWORD; else None."""
    return _BY_PLAIN_NAME.get(variable.lower().replace("_", "."))
