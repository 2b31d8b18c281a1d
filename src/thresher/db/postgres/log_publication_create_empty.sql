-- Publishes no table: messages of the log need none, but pgoutput asks for a publication.
CREATE PUBLICATION {publication} WITH (publish = 'insert')
