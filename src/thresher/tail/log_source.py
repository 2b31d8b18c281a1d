"""Where a tail's rows come from: inserts into a table, or messages that no table holds."""

from dataclasses import dataclass

from thresher.db.names import TableName
from thresher.db.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Inserts into an outbox table. The name needs its schema: a search_path does not apply to the WAL."""

    table: TableName
    shape: Shape = Shape.THRESHER
    # OID of the table, if known: with it, rows are recognized that were inserted while the table had another name.
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """Transactional messages in the WAL, written by an `Outbox(via="log")` of this name.

    `accept_public_emit`: the tail may start although every role may write to the WAL. It publishes none of that.
    """

    outbox: TableName
    # Its name with the schema of the function that writes them; None: the session's search_path decides.
    placed: TableName | None = None
    accept_public_emit: bool = False


Source = TableSource | LogSource
