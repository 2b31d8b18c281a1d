-- One header of every row that is still to be sent, in our own shape; NULL without it. Parameter: the header's name.
-- The bucket index holds just these rows; where they are many, a scan is as good.
SELECT kafka_header_values[array_position(kafka_header_keys, %s)] FROM {table} WHERE dispatched_time IS NULL
