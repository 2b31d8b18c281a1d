"""The port for progress: how a pipeline makes its progress records, and decides which of them have to be settled.

A progress record is written in the same Kafka transaction as its rows, so it is committed exactly if they are. A
relay's record holds ids and fates, which are settled in the table. A tail's holds a position in the database's WAL.
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
        """Consecutive rows on which transforms failed, up to and including this transaction."""


class ProgressOrigin(Protocol):
    """The outbox that a progress record belongs to."""

    @property
    def outbox_id(self) -> str:
        """The outbox's id."""


class StoredProgress(ProgressRecord, Protocol):
    """One transaction's progress as read from the progress topic."""

    @property
    def origin(self) -> ProgressOrigin:
        """The outbox that it belongs to."""


class RowProgress(ProgressRecord, Protocol):
    """One transaction's progress with its rows, in the order in which they were taken."""

    @property
    def ids(self) -> Sequence[int]:
        """The rows' ids."""

    @property
    def create_times(self) -> Sequence[int]:
        """The rows' create times, in microseconds since 1970."""

    @property
    def fates(self) -> Sequence[Fate]:
        """The fate of each row."""

    @property
    def all_sent(self) -> bool:
        """Whether every row was sent."""


class ProgressBook(Protocol):
    """Makes one shard's progress records, and checks those that recovery finds."""

    def opened(self, control: Any) -> None:
        """Remember the control row that recovery read: records name its outbox, database and term from now on."""

    def record(self, number: int, rows: Rows, failures: int) -> ProgressRecord:
        """Return the progress record of a transaction with these rows."""

    def fitting(self, rows: Rows) -> int:
        """Return how many of the rows, from the first, fit into one progress record: at least one."""

    def require_ours(self, records: Iterable[Any]) -> None:
        """Raise `ForeignProgress` if a record belongs to another outbox."""

    def wants_horizon(self, records: Sequence[Any]) -> bool:
        """Whether all records within the horizon have to be settled, because the database may have lost settlings."""
