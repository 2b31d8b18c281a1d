"""Names made from a pipeline's name: its transactional ids, its progress topic, its database sessions."""

import hashlib
import re

# Short enough that a topic name and a transactional id made from it stay within Kafka's limits.
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def valid_name(name: str) -> bool:
    """Whether a pipeline may have this name."""
    return _NAME.fullmatch(name) is not None


def transactional_id(name: str, shard: int, id_index: int = 0) -> str:
    """Return a shard's transactional id: the first, or another that it uses while the first is blocked."""
    return f"{name}-{shard}.{id_index}" if id_index else f"{name}-{shard}"


# The ending of every progress topic's name.
PROGRESS = ".progress"


def progress_topic(name: str) -> str:
    """Return the name of a pipeline's progress topic."""
    return f"{name}{PROGRESS}"


def sessions(name: str, term: str = "") -> str:
    """Return the prefix of a pipeline's session names (`application_name`); with a term, of that term's sessions.

    Contains a hash of the pipeline's name: Postgres keeps 63 bytes, and the name may be longer.
    """
    return f"thresher/{_short(name)}/{term}"


def visitor(name: str, term: str = "") -> str:
    """Return the name of a session of a process that is joining, and that takes no rows. No take-over ends it.

    With a term: of the process that founds a group of relays under that term.
    """
    return f"thresher-join/{_short(name)}/{term}"


def shard_sessions(name: str, term: str, shard: int) -> str:
    """Return the name of all database sessions of one shard."""
    return f"{sessions(name, term)}/{shard}"[:63]


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]


def tail_group(name: str) -> str:
    """Return the name of a tail's lease, and the prefix of its transactional ids and progress topic.

    A relay of the same name has its own.
    """
    return f"{name}.tail"
