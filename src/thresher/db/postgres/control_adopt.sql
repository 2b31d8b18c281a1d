-- Records an operator's decision (adopt): the relay accepts this database, and forgets its progress topic.
UPDATE {table} SET system_id = %(system_id)s, progress_topic_id = NULL WHERE name = %(name)s
