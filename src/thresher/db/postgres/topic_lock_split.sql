-- Records another split of a topic. Its locks are held by whoever does this.
UPDATE {locks} SET parts = %(parts)s WHERE topic = %(topic)s
