"""The client's properties by name: to tell the nearest to one that there is not, and to find one in the environment."""

import re
from importlib import resources

# Those of librdkafka 2.16 that a file can hold. The client itself judges names and values: one that is missing here
# works, and is only never suggested.
PROPERTIES = tuple(resources.files(__package__).joinpath("properties.txt").read_text(encoding="ascii").split())
_BY_PLAIN_NAME = {re.sub(r"[._-]", ".", name): name for name in PROPERTIES}
# A topic's properties may be given so too.
_TOPIC = "topic."


def plain(name: str) -> str:
    """Return the name that a property goes by, without the prefix that the client would take off."""
    bare = name.removeprefix(_TOPIC)
    return bare if bare != name and name not in PROPERTIES else name


def in_environment(variable: str) -> str | None:
    """Return the property that a variable's name stands for: SASL_PASSWORD for sasl.password. None if there is none."""
    return _BY_PLAIN_NAME.get(variable.lower().replace("_", "."))
