"""The partition of rows that go by a partition key: CRC32, as ruby-kafka chooses it.

A pure decision, made for each transaction: the number of a topic's partitions is the one that was told before it. A
topic that gets more partitions has other ones for its keys from then on, as with every client of Kafka.
"""

from collections.abc import Mapping

from thresher.delivery.row import BY_ROW_KEY, ColumnRows, Record, Row, RowList, Rows
from thresher.kafka.partitioners import crc32_partition


def with_partitions(rows: Rows, partitions: Mapping[str, int]) -> Rows:
    """Return the rows, each record that goes by its row's key with its partition. `partitions`: how many, by topic."""
    if isinstance(rows, ColumnRows) or all(record.partition != BY_ROW_KEY for _, record in rows.records()):
        return rows
    return RowList([_placed(row, partitions) for row in rows])


def _placed(row: Row, partitions: Mapping[str, int]) -> Row:
    plan = row.plan
    if not isinstance(plan, Record) or plan.partition != BY_ROW_KEY:
        return row
    return row._replace(plan=plan._replace(partition=crc32_partition(row.key or b"", partitions[plan.topic])))
