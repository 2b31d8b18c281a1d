"""What Kafka allows a topic to be called."""

import re

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# The broker's own: it lets no client write there, and fails a whole transaction that tries.
_BROKERS = frozenset({"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"})


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows a topic to be named so."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_topic(name: str) -> bool:
    """Whether Kafka allows a topic to be named so, and clients to write to it."""
    return is_topic_name(name) and name not in _BROKERS
