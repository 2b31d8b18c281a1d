-- The keys with which messages in the WAL are sealed. Scan of a few rows.
SELECT k.id, k.inner_pad, k.outer_pad FROM {keys} k
