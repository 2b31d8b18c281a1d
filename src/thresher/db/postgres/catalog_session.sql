-- Makes the catalog print names and formulas in the same way for every caller, and compiles none of the short queries of a
-- check. Local to a savepoint that is rolled back.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL quote_all_identifiers = off;
SET LOCAL jit = off
