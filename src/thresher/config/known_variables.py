"""The environment variables that Thresher reads, in whatever command: so that a misspelt one is noticed.

They are listed in `variables.txt`, which `maintenance/variables.py` writes from the forms and the commands: to know
them here costs no import of either. Kafka's properties, which have variables too, are not among them.
"""

from functools import cache
from importlib.resources import files

from thresher.config.report import nearest

PREFIX = "THRESHER_"
_SECTIONS = ("KAFKA_", "PRODUCER_", "CONSUMER_")


@cache
def known_variables() -> frozenset[str]:
    """Return the names, without prefix."""
    return frozenset(files(__package__).joinpath("variables.txt").read_text(encoding="ascii").split())


def misspelt(variable: str) -> str | None:
    """Return what to say of a variable that nothing reads and whose name is near to another's; None of all others.

    A variable that is near to none is not ours: Kubernetes puts the addresses of its services under such names.
    """
    name = variable.removeprefix(PREFIX).upper()
    if not variable.startswith(PREFIX) or name in known_variables() or name.startswith(_SECTIONS):
        return None
    # Without the prefix, which would make all of them alike.
    near = nearest(name, known_variables()).replace("'", f"'{PREFIX}", 1)
    return f"{variable} is not read{near}" if near else None
