-- Drops a publication: from here on nothing is published by it.
DROP PUBLICATION IF EXISTS {publication}
