"""What an outbox is called in Postgres' log: the prefix of its messages, and its slot and publication by default."""

import hashlib
import re

from thresher.db.names import InvalidName, TableName

_SLOT_BYTES = 63
_NOT_IN_SLOTS = re.compile(r"[^a-z0-9_]")


def log_prefix(outbox: TableName) -> str:
    """Return the prefix of an outbox' messages in the log. Raises `InvalidName` where two names would share one."""
    parts = [outbox.table] if outbox.schema is None else [outbox.schema, outbox.table]
    if any("." in part for part in parts):
        raise InvalidName(
            f"outbox {outbox} has a dot in its name: in the log, a dot is what separates a schema from a name. Choose "
            "another name for an outbox that no table holds"
        )
    return f"thresher:{'.'.join(parts)}"


def is_slot_name(name: str) -> bool:
    """Whether a slot can be called so."""
    return 0 < len(name) <= _SLOT_BYTES and not _NOT_IN_SLOTS.search(name)


def slot_name(outbox: TableName) -> str:
    """Return what the slot of an outbox, and its publication, are called unless somebody says otherwise.

    Slots have lower-case letters, digits and underscores; what does not fit is told apart by a hash, also outboxes of
    one name in different schemas: whoever writes to one must not be content with the slot of another.
    """
    name = f"thresher_{outbox.table if outbox.schema is None else f'{outbox.schema}.{outbox.table}'}"
    fitting = _NOT_IN_SLOTS.sub("_", name.lower())
    if fitting == name and len(name) <= _SLOT_BYTES:
        return name
    return f"{fitting[:54]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
