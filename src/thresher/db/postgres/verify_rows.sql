-- One header of every row, sent or not: for goharvest's outbox, where sent rows are deleted, and for dead rows of any
-- shape. NULL if the row lacks it. Parameter: the header's name. A scan.
SELECT kafka_header_values[array_position(kafka_header_keys, %s)] FROM {table}
