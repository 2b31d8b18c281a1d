"""The words for a pipeline in metrics, pages and logs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words for a pipeline in metrics, pages and the log. Other programs read them, so they must not change."""

    # The noun, such as `relay`: the first label of its metrics, and a field of its log lines.
    label: str
    # The verb for its shards in help texts, such as `relay` in "a leader whose shards relay".
    verb: str
    # The name of the gauge that a recovered shard sets to 1, of the event that it reports, and of /readyz' reason.
    doing: str
    # The name of the count that measures throughput: shards count under it, and /status shows it.
    done: str
    # The key under which /readyz lists the things that wait.
    held: str = "held"
    # The steps of its shards that run the user's code instead of waiting for a server. If such a step hangs, a restart
    # helps.
    own_steps: frozenset[str] = frozenset()
