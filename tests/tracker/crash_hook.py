"""A hook for a tracker's workers: obeys a test's order to kill a part of the tracker at a crash point."""

from tests.faults.kill_order import obey

HOOK = f"{__name__}:reached"


def reached(point: str, _shard: int, messages: list[int]) -> None:
    """Obey the order in a transaction with messages."""
    if messages:
        obey(point)
