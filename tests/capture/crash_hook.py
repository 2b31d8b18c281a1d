"""A hook for a capture's workers: obeys a test's order to kill a part of the capture at a crash point."""

from tests.faults.kill_order import obey

HOOK = f"{__name__}:reached"


def reached(point: str, _shard: int, records: list[int]) -> None:
    """Obey the order in a batch with records."""
    if sum(records):
        obey(point)
