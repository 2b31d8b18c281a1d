-- The body of a function that runs statements and returns how many rows the last one changed.
DECLARE
  changed bigint;
BEGIN
{statements}
  GET DIAGNOSTICS changed = ROW_COUNT;
  RETURN changed;
END
