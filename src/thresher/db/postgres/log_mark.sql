-- Notes beside a publication since when its slots have all of its inserts. Only the publication's owner can.
COMMENT ON PUBLICATION {publication} IS {note}
