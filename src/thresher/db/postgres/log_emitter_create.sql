-- The function through which writers put messages into the WAL, and the keys with which it seals them.
-- A key is stored as HMAC uses it: 64 random bytes, each combined with 0x36 (inner_pad) and with 0x5c (outer_pad). The
-- seal is HMAC-SHA-256 of prefix, transaction id, a position of the WAL just before the message, and the content. So a
-- copy fits neither another transaction nor a second place in its own. Only the function's owner reads the keys, and
-- whoever is granted to: the tail.
CREATE TABLE {keys} (
  id          INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  create_time TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  inner_pad   BYTEA NOT NULL CHECK (pg_catalog.octet_length(inner_pad) OPERATOR(pg_catalog.=) 64),
  outer_pad   BYTEA NOT NULL CHECK (pg_catalog.octet_length(outer_pad) OPERATOR(pg_catalog.=) 64)
);
REVOKE ALL ON {keys} FROM PUBLIC;
CREATE FUNCTION {emit}(content BYTEA) RETURNS pg_lsn
  LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $emit$
DECLARE
  place BYTEA := pg_lsn_send(pg_current_wal_insert_lsn());
  head BYTEA;
  sealed BYTEA;
  outside BYTEA;
BEGIN
  IF octet_length(content) > {most_bytes} THEN
    RAISE program_limit_exceeded
      USING MESSAGE = 'a message of ' || octet_length(content) || ' bytes: {most_bytes} are allowed';
  END IF;
  SELECT decode('02', 'hex') || int4send(k.id) || place,
         k.inner_pad || convert_to({prefix}, 'UTF8') || decode('00', 'hex') || xidsend(pg_current_xact_id()::xid)
           || place || content,
         k.outer_pad
    INTO STRICT head, sealed, outside
    FROM {keys} k ORDER BY k.id DESC LIMIT 1;
  RETURN pg_logical_emit_message(true, {prefix}, head || sha256(outside || sha256(sealed)) || content);
END
$emit$;
REVOKE ALL ON FUNCTION {emit}(BYTEA) FROM PUBLIC;
