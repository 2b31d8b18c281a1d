"""The words by which a service speaks of its pipeline."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words for a pipeline in metrics, pages and the log: a part of its interface, which stays the same."""

    # The noun: the first label of its metrics, and a field of its log lines. Such as `relay`.
    label: str
    # The verb for its shards, in help texts. Such as `relay`, for "a leader whose shards relay".
    verb: str
    # The gauge that a recovered shard sets to 1, the event by which it says so, and the reason that /readyz gives.
    doing: str
    # The figure by which throughput is measured: shards count under it, and /status shows it.
    done: str
    # The key under which /readyz names what waits.
    held: str = "held"
    # The steps of its shards that run code of the user's, rather than wait for a server: against one that hangs, a
    # restart helps.
    own_steps: frozenset[str] = frozenset()
