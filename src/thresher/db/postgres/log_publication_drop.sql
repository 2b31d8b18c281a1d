-- Nothing is published by it from here on.
DROP PUBLICATION IF EXISTS {publication}
