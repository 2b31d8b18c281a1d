"""The one report of all problems of a configuration: key, reason, nearest key, and no value that could be secret."""

import difflib
import re
from collections.abc import Iterable, Sequence

# A key and the reason.
Problem = tuple[str, str]


def nearest(key: str, known: Iterable[str]) -> str:
    """Return a question that names the most similar known key; an empty text if none is similar."""
    # Ignore case and separators: dataSource is similar to data_source.
    bare = {re.sub(r"[\W_]", "", name).lower(): name for name in known}
    near = difflib.get_close_matches(re.sub(r"[\W_]", "", key).lower(), bare, 1, 0.7)
    return f", did you mean {bare[near[0]]!r}?" if near else ""


def no_such_key(key: str, known: Iterable[str]) -> str:
    """Return the problem of a key that does not exist."""
    return f"there is no such key{nearest(key, known)}"


def as_text(problems: Sequence[Problem]) -> str:
    """Return all problems in one message."""
    lines = [f"{key}: {why}" for key, why in problems]
    lead = "the configuration cannot work: "
    return lead + lines[0] if len(lines) == 1 else "\n  ".join([lead.strip(), *lines])
