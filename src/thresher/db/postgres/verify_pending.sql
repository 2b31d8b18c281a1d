-- One header of every pending row, in Thresher's own shape; NULL if the row lacks it. Parameter: the header's name. The
-- bucket index holds exactly these rows; if they are many, a scan is as good.
SELECT kafka_header_values[array_position(kafka_header_keys, %s)] FROM {table} WHERE dispatched_time IS NULL
