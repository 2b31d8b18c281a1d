"""The environment variables that any command of Thresher reads, so that a misspelt one is noticed.

`variables.txt` lists them; `maintenance/variables.py` generates it from the forms and the commands. So this module
imports neither. The variables of Kafka properties are not listed.
"""

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files

from thresher.config.report import nearest

PREFIX = "THRESHER_"
_SECTIONS = ("KAFKA_", "PRODUCER_", "CONSUMER_")
# Variables that Kubernetes sets for the addresses of a service whose name begins with thresher.
_OF_KUBERNETES = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)")
# Names that people try, and that are too different from ours for `nearest`.
_OTHER_WORDS = {
    "BROKER": "BOOTSTRAP",
    "BROKERS": "BOOTSTRAP",
    "BOOTSTRAP_SERVERS": "BOOTSTRAP",
    "DB": "DS",
    "DB_URL": "DS",
    "DATABASE": "DS",
    "DATABASE_URL": "DS",
    "POSTGRES_URL": "DS",
    "TABLE": "OUTBOX",
}
_LISTED = "; 'thresher run --help' and docs/configuration.md have the names"


@cache
def known_variables() -> frozenset[str]:
    """Return the names, without prefix."""
    return frozenset(files(__package__).joinpath("variables.txt").read_text(encoding="ascii").split())


def misspelt(variable: str, unset: Collection[str] = ()) -> str | None:
    """Return a remark on a variable with our prefix that is not read; None for any other variable.

    `unset` are the variables that the command reads and that are not set: a variable of another command may be meant
    for one of them. Variables that Kubernetes sets for the addresses of a service get no remark.
    """
    name = variable.removeprefix(PREFIX).upper()
    if not variable.startswith(PREFIX) or name.startswith(_SECTIONS) or _OF_KUBERNETES.fullmatch(name):
        return None
    meant, known = _OTHER_WORDS.get(name), name in known_variables()
    if meant is not None and (not known or meant in unset):
        return f"{variable} is not read{' here' if known else ''}, did you mean '{PREFIX}{meant}'?"
    if known:
        return None
    # Compare without the prefix, which would make all names similar.
    near = nearest(name, known_variables()).replace("'", f"'{PREFIX}", 1)
    return f"{variable} is not read{near or _LISTED}"
