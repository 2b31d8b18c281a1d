"""The one Arrow schema of outbox rows, whatever database they are read from."""

import pyarrow as pa

_MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("create_time", _MOMENT),
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("header_keys", pa.list_(pa.string())),
        ("header_values", pa.list_(pa.binary())),
        ("partition", pa.int32()),
        ("timestamp", _MOMENT),
    ]
)
# A row as it is read. `flaw` is the reason why it cannot be sent, where the query itself can tell.
READ_SCHEMA = SCHEMA.append(pa.field("flaw", pa.string()))
# A row as it is read from Deimos' table. `partition_key` chooses the partition instead of the key.
KEYED_SCHEMA = READ_SCHEMA.append(pa.field("partition_key", pa.binary()))
# The index of the flaw in a row as it is read.
FLAW = len(SCHEMA)
