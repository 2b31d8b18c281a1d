-- Gives a role the rows of a table that the condition selects. Repeatable, and in one statement: a running relay must
-- not see a moment without its policy.
DO {quote}
BEGIN
  DROP POLICY IF EXISTS {policy} ON {on};
  CREATE POLICY {policy} ON {on} FOR {command} TO {role} USING ({using}){check};
END
{quote};
