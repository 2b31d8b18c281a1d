-- Whether a lock is still held under this token. Index: topic.
SELECT true FROM {locks} WHERE topic = %(name)s AND token = %(token)s AND locked_by IS NOT NULL
