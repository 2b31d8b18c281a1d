"""Performs the effect by which a shard keeps what waits: its successors go on with each grace."""

from collections.abc import Callable

from thresher.core.errors import Superseded
from thresher.db.waits import KeptWaits
from thresher.delivery.effects import Handlers, KeepWaits


class WaitKeeper:
    """Keeps the waits of one shard, under a term. For the task's own thread.

    `settled` waits until all settling is durable: the settler's thread uses the same session, perhaps in a transaction.
    """

    def __init__(self, waits: KeptWaits, name: str, shard: int, *, term: str, settled: Callable[[], object]) -> None:
        self._waits, self._name, self._shard = waits, name, shard
        self._term, self._settled = term, settled

    @property
    def handlers(self) -> Handlers:
        """The function that performs the effect."""
        return {KeepWaits: self._keep}

    def _keep(self, effect: KeepWaits) -> None:
        self._settled()
        if not self._waits.keep(self._name, self._shard, effect.waits, term=self._term):
            raise Superseded(f"a newer leader of {self._name} has taken over; this attempt ends")
