"""What waits in the shards of a pipeline, and for how long: kept in the database, so that restarts prolong no wait.

Each shard has one row, beside the control row, which its attempt replaces as a whole. So what is kept is bounded by
what one attempt keeps. A row that no attempt has written for a minute does not count: topics may have come and gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """For how many seconds topics have been missing, and single rows, by id and create time, have waited."""

    topics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[tuple[int, int], float] = field(default_factory=dict)


class KeptWaits(Protocol):
    """The kept waits of one schema, over one session. Each call is a transaction of its own."""

    def read(self, name: str) -> Waits:
        """Return what waits in any shard of a pipeline, until now."""
        ...

    def keep(self, name: str, shard: int, waits: Waits, *, term: str) -> bool:
        """Replace what is kept for a shard. Returns False, and writes nothing, if the control row has another term."""
        ...
