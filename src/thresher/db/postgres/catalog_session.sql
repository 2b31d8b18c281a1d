-- How the catalog prints names and formulas, the same for every caller. Local to a savepoint that is rolled back.
SET LOCAL search_path = pg_catalog;
SET LOCAL quote_all_identifiers = off
