-- One header of every row, sent or not: goharvest's outbox, where sent rows are deleted, and the dead rows of any shape.
-- NULL without it. Parameter: the header's name. A scan.
SELECT kafka_header_values[array_position(kafka_header_keys, %s)] FROM {table}
