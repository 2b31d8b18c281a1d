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
# As read: with what is wrong with a row that the database can tell without handing it over.
READ_SCHEMA = SCHEMA.append(pa.field("flaw", pa.string()))
# As read from Deimos' table: with what chooses the partition instead of the key.
KEYED_SCHEMA = READ_SCHEMA.append(pa.field("partition_key", pa.binary()))
# The place of the flaw in a row that was read.
FLAW = len(SCHEMA)
