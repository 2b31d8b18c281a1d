"""The archive: moves rows that were sent long ago to a table beside the outbox, or to Parquet files.

A row is stamped when it has its dispatched time: it was sent, by a relay or dispatcher that keeps rows.
"""
