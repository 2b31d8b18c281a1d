"""The function that writes an outbox's messages to the WAL, its keys, and how it seals a message.

Only writers may execute the function; it seals what it writes, and a tail publishes nothing that is not sealed. The
server's own `pg_logical_emit_message` needs no right at all, until it is revoked from PUBLIC.
"""

from dataclasses import dataclass, field
from hashlib import sha256

from thresher.db.log_names import log_prefix
from thresher.db.names import InvalidName, TableName
from thresher.db.statements import statement

# What the function accepts as one message.
MOST_BYTES = 64 * 2**20
_QUOTE = "$emit$"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEmitter:
    """An outbox's function and keys, and the rights that matter, as the server describes them."""

    # The quoted names of the function, without its arguments, and of the table of its keys.
    function: str
    keys: str
    # Whether both exist, and whether the function runs with its owner's rights.
    exists: bool
    definer: bool
    owner: str | None
    public_executes: bool
    public_reads_keys: bool
    # Whether this session's user may read the keys, and the owner may execute the server's function for bytea.
    keys_readable: bool
    owner_emits: bool
    # The server's own functions, and whether every role may execute one of them.
    server_functions: tuple[str, ...]
    server_open: bool
    user: str
    # What strangers could do by the keys or the function: see `strangers`.
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogKey:
    """A key, as HMAC uses it: combined with 0x36 and with 0x5c."""

    inner: bytes = field(repr=False)
    outer: bytes = field(repr=False)

    def seal(self, sealed: bytes) -> bytes:
        """Return the HMAC-SHA-256 of these bytes."""
        return sha256(self.outer + sha256(self.inner + sealed).digest()).digest()


def emit_function(outbox: TableName) -> str:
    """Return the quoted name of the outbox's function."""
    return outbox.companion("_emit")


def keys_table(outbox: TableName) -> str:
    """Return the quoted name of the table of the function's keys."""
    return outbox.companion("_keys")


def emitter_ddl(outbox: TableName, schema: str) -> str:
    """Return the statements that create function, keys and the first key in a schema. Raises `InvalidName`.

    The function names its keys with their schema: it must not look for them where its caller may create tables.
    """
    within = TableName(table=outbox.table, schema=schema)
    emit, keys = emit_function(within), keys_table(within)
    if _QUOTE in emit + keys:
        raise InvalidName(f"outbox {outbox} has {_QUOTE} in its name, with which the text of its function ends")
    prefix, most = _literal(log_prefix(outbox)), str(MOST_BYTES)
    created = statement("log_emitter_create", emit=emit, keys=keys, prefix=prefix, most_bytes=most)
    return f"{created}\n{statement('log_key_create', keys=keys)}"


def _literal(text: str) -> str:
    """Return text as SQL that means the same in a session with any rule for backslashes."""
    if "\\" in text or "'" in text:
        return f"convert_from(decode('{text.encode().hex()}', 'hex'), 'UTF8')"
    return f"'{text}'"
