"""A receipt: which row of which outbox a message became. It is good once the caller's transaction has committed."""

from dataclasses import dataclass
from datetime import datetime

from thresher.core.errors import InvalidInput
from thresher.db import TableName


class NoReceiptsInPipeline(InvalidInput):
    """Receipts were asked for inside of a pipeline, where the database has not answered yet. Nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One stored message. The create time tells it from another row that came back under the same id."""

    table: TableName
    id: int
    create_time: datetime
