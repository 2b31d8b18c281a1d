-- An operator's word that this database and this progress topic are to be this relay's from now on.
UPDATE {table} SET system_id = %(system_id)s, progress_topic_id = NULL WHERE name = %(name)s
