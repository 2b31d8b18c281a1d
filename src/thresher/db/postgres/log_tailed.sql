-- The outboxes beside these control rows that are read from the log, by their quoted names. Scan: of a few rows.
SELECT c.outbox FROM {table} c WHERE c.mode = 'tail' ORDER BY c.outbox
