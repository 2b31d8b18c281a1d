"""Where a tail's rows come from: inserts into a table, or messages that no table holds."""

from dataclasses import dataclass

from thresher.db.names import TableName
from thresher.db.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Inserts into an outbox table, which is named with its schema: the log knows no search_path."""

    table: TableName
    shape: Shape = Shape.THRESHER
    # Its number in the catalog, if that is known: by it, rows are found that came while it had another name.
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """Transactional messages in the log, written by an `Outbox(via="log")` of that name."""

    outbox: TableName


Source = TableSource | LogSource
