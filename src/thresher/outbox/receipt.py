"""A receipt: the outbox row of a stored message. It is valid once the caller's transaction has committed."""

from dataclasses import dataclass
from datetime import datetime

from thresher.core.errors import InvalidInput
from thresher.db import TableName


class NoReceiptsInPipeline(InvalidInput):
    """Receipts were requested in a pipeline, where the database has not answered yet. Nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The row of one stored message. The create time distinguishes it from another row with a reused id."""

    table: TableName
    id: int
    create_time: datetime
