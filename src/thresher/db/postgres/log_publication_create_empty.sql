-- Creates a publication without tables: messages in the WAL need none, but pgoutput requires a publication.
CREATE PUBLICATION {publication} WITH (publish = 'insert')
