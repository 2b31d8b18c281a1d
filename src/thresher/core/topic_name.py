"""The topic names that Kafka allows."""

import re

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# Internal topics of the broker: it rejects clients' writes to them, and a rejected write fails its transaction.
_BROKERS = frozenset({"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"})


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows this name for a topic."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_topic(name: str) -> bool:
    """Whether Kafka allows this name for a topic, and clients to write to that topic."""
    return is_topic_name(name) and name not in _BROKERS
