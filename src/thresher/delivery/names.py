"""The names that contain a pipeline's own: its transactional ids, its progress topic, its database sessions."""

import hashlib
import re

# With what is added to it, a topic's name must fit, and so must a transactional id in a broker's log.
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def valid_name(name: str) -> bool:
    """Whether a pipeline can be named so."""
    return _NAME.fullmatch(name) is not None


def transactional_id(name: str, shard: int, lane: int = 0) -> str:
    """Return the id under which a shard publishes; with a lane, one that it moves to while that one is blocked."""
    return f"{name}-{shard}.{lane}" if lane else f"{name}-{shard}"


# How the name of every progress topic ends.
PROGRESS = ".progress"


def progress_topic(name: str) -> str:
    """Return the topic of a pipeline's progress."""
    return f"{name}{PROGRESS}"


def sessions(name: str, term: str = "") -> str:
    """Return how the names of a pipeline's database sessions begin; with a term, those of that term.

    Postgres keeps 63 bytes: the pipeline's own name may be longer.
    """
    return f"thresher/{_short(name)}/{term}"


def visitor(name: str, term: str = "") -> str:
    """Return the name of a database session that works on no rows, and that nobody ends.

    With a term, that of a process which founds a group of relays under it.
    """
    return f"thresher-join/{_short(name)}/{term}"


def shard_sessions(name: str, term: str, shard: int) -> str:
    """Return the name of all database sessions of one shard."""
    return f"{sessions(name, term)}/{shard}"[:63]


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]
