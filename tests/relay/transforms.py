"""Transforms for tests, which workers import by path."""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

FAILING, FILTERED = b"fail", b"filter"


def only_even(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep rows whose value ends in an even digit."""
    return batch.filter(pa.array([int(value[-1:]) % 2 == 0 for value in batch.column("value").to_pylist()]))


def shout(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Change the value and add a header."""
    values = [value.upper() + b"!" for value in batch.column("value").to_pylist()]
    names = [[*names, "shouted"] for names in batch.column("header_keys").to_pylist()]
    contents = [[*values, b"yes"] for values in batch.column("header_values").to_pylist()]
    batch = batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    batch = batch.set_column(
        batch.schema.get_field_index("header_keys"), "header_keys", pa.array(names, pa.list_(pa.string()))
    )
    return batch.set_column(
        batch.schema.get_field_index("header_values"), "header_values", pa.array(contents, pa.list_(pa.binary()))
    )


def elsewhere(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Send every row to another topic, with its value as the key."""
    topics = pc.binary_join_element_wise(batch.column("topic"), pa.scalar("elsewhere"), "-")
    batch = batch.set_column(batch.schema.get_field_index("topic"), "topic", topics)
    return batch.set_column(batch.schema.get_field_index("key"), "key", batch.column("value"))


def merged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Send every row under one key, to the topic whose name is one letter shorter."""
    topics = pc.utf8_slice_codeunits(batch.column("topic"), 0, -1)
    keys = pa.array([b"one"] * batch.num_rows, pa.binary())
    batch = batch.set_column(batch.schema.get_field_index("topic"), "topic", topics)
    return batch.set_column(batch.schema.get_field_index("key"), "key", keys)


def unhurried(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Take a while over each batch."""
    time.sleep(0.3)
    return batch


def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail on some rows."""
    if b"bad" in batch.column("value").to_pylist():
        raise ValueError("this one I do not like")
    return batch


def choosy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail on some rows, filter others, and pass the rest unchanged."""
    values = batch.column("value").to_pylist()
    if FAILING in values:
        raise ValueError("not this one")
    return batch.filter(pa.array([value != FILTERED for value in values], pa.bool_()))


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail on every row."""
    raise RuntimeError("out of order")


def out_of_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail while the file exists that a row's value names."""
    if any(Path(value.decode()).exists() for value in batch.column("value").to_pylist()):
        raise RuntimeError("out of order")
    return batch


def stuck(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return when the files that the rows' values name are gone."""
    while any(Path(value.decode()).exists() for value in batch.column("value").to_pylist()):
        time.sleep(0.05)
    return batch
