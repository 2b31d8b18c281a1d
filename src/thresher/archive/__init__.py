"""The archive: rows that were sent and stamped long ago, moved to a table beside the outbox or to Parquet files."""
