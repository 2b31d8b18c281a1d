"""Topics that are locked in parts: each part has the keys of some buckets, and its own lock, slot and order.

The number of parts is recorded with the topic. A relay that was told another number is refused: two processes that
differ about the parts would send rows of a key side by side. Only `change_split` changes it, once nobody works.
"""

from collections.abc import Mapping

from thresher.relay.problem import OtherSplit


def require_split(topic: str, *, recorded: int, told: int) -> None:
    """Raise `OtherSplit` if a topic is locked in another number of parts than this relay was told."""
    if recorded != told:
        raise OtherSplit(
            f"topic {topic} is locked in {recorded} part{'s' * (recorded > 1)}, and split_topics says {told}: say "
            f"{recorded}, or change it for all with 'thresher topics split {topic} {told}'"
        )


def require_splits(recorded: Mapping[str, int], told: Mapping[str, int]) -> None:
    """Raise `OtherSplit` for the first topic whose recorded number of parts differs from what this relay was told."""
    for topic, parts in sorted(recorded.items()):
        require_split(topic, recorded=parts, told=told.get(topic, 1))
