-- One function of functions_create. Its search_path holds nothing that others could plant, and temporary objects come
-- last.
  CREATE OR REPLACE FUNCTION {function} RETURNS {returns} LANGUAGE {language} SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS {quote}
{body}
{quote};
{give}
  REVOKE ALL ON FUNCTION {function} FROM PUBLIC;
  GRANT EXECUTE ON FUNCTION {function} TO {caller};
