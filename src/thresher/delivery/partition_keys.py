"""Chooses the partition of rows with a partition key: CRC32, as ruby-kafka does it.

A pure function, called for each transaction with the number of partitions that was looked up before it. If a topic gets
more partitions, its keys move to others, as with every Kafka client.
"""

from collections.abc import Mapping

from thresher.delivery.row import BY_ROW_KEY, ColumnRows, Record, Row, RowList, Rows
from thresher.kafka.partitioners import crc32_partition


def with_partitions(rows: Rows, partitions: Mapping[str, int]) -> Rows:
    """Return the rows with the partition of each record that is `BY_ROW_KEY`. `partitions`: their number, by topic."""
    if isinstance(rows, ColumnRows) or all(record.partition != BY_ROW_KEY for _, record in rows.records()):
        return rows
    return RowList([_placed(row, partitions) for row in rows])


def _placed(row: Row, partitions: Mapping[str, int]) -> Row:
    plan = row.plan
    if not isinstance(plan, Record) or plan.partition != BY_ROW_KEY:
        return row
    return row._replace(plan=plan._replace(partition=crc32_partition(row.key or b"", partitions[plan.topic])))
