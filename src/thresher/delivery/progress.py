"""The port for progress: what a pipeline's progress records hold, and which of them have to be settled.

A progress record is written in the same Kafka transaction as the rows it speaks of, so it is committed if they are. A
relay's holds ids and fates, which are settled in a table; a tail's would hold a position in a log, with nothing to
settle.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from thresher.delivery.fate import Fate
from thresher.delivery.row import Rows


class ProgressRecord(Protocol):
    """One transaction's progress."""

    @property
    def number(self) -> int:
        """The transaction's number, counted by shard."""

    @property
    def failures(self) -> int:
        """How many rows in a row transforms failed on, up to and including this transaction."""


class ProgressOrigin(Protocol):
    """Whose progress a record is."""

    @property
    def outbox_id(self) -> str:
        """The id of the outbox that its pipeline serves."""


class StoredProgress(ProgressRecord, Protocol):
    """One transaction's progress as it lies in its topic."""

    @property
    def origin(self) -> ProgressOrigin:
        """Whose it is."""


class RowProgress(ProgressRecord, Protocol):
    """One transaction's progress with the rows that it carried, in the order in which they were taken."""

    @property
    def ids(self) -> Sequence[int]:
        """The rows' ids."""

    @property
    def create_times(self) -> Sequence[int]:
        """The rows' create times, in microseconds since 1970."""

    @property
    def fates(self) -> Sequence[Fate]:
        """What became of each row."""

    @property
    def all_sent(self) -> bool:
        """Whether every row was sent."""


class ProgressBook(Protocol):
    """Makes one shard's progress records, and judges those that recovery finds."""

    def opened(self, control: Any) -> None:
        """Take in the control row that recovery read: records are written in its name from now on."""

    def record(self, number: int, rows: Rows, failures: int) -> ProgressRecord:
        """Return the record of a transaction that carries these rows."""

    def fitting(self, rows: Rows) -> int:
        """Return how many of the rows, from the first, fit into one record: one at least."""

    def require_ours(self, records: Iterable[Any]) -> None:
        """Raise `ForeignProgress` if a record is another's."""

    def wants_horizon(self, records: Sequence[Any]) -> bool:
        """Whether more than the last record has to be settled, because the database may have lost settlings."""
