"""The names of an outbox in Postgres' WAL: the prefix of its messages, and the default name of slot and publication."""

import hashlib
import re

from thresher.db.names import InvalidName, TableName

_SLOT_BYTES = 63
_NOT_IN_SLOTS = re.compile(r"[^a-z0-9_]")


def log_prefix(outbox: TableName) -> str:
    """Return the prefix of an outbox's messages in the WAL. Raises `InvalidName` if two outboxes could share it."""
    parts = [outbox.table] if outbox.schema is None else [outbox.schema, outbox.table]
    if any("." in part for part in parts):
        raise InvalidName(
            f"outbox {outbox} has a dot in its name: in the WAL, a dot separates the schema from the name. Choose "
            "another name for an outbox without a table"
        )
    return f"thresher:{'.'.join(parts)}"


def is_slot_name(name: str) -> bool:
    """Whether Postgres accepts this name for a slot."""
    return 0 < len(name) <= _SLOT_BYTES and not _NOT_IN_SLOTS.search(name)


def slot_name(outbox: TableName) -> str:
    """Return the default name of an outbox's slot and publication.

    The name of a slot has lower-case letters, digits and underscores only. A name that does not fit gets a hash, and so
    does a name with a schema. So no two outboxes share a slot: a writer must not accept another outbox's slot.
    """
    name = f"thresher_{outbox.table if outbox.schema is None else f'{outbox.schema}.{outbox.table}'}"
    fitting = _NOT_IN_SLOTS.sub("_", name.lower())
    if fitting == name and len(name) <= _SLOT_BYTES:
        return name
    return f"{fitting[:54]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
