-- Ends a lease that this process still holds, so that another can take it at once. Index: the primary key. Fence:
-- holder and token.
UPDATE {table} SET until = '-infinity' WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s
