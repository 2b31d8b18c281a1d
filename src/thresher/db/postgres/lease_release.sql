-- Ends a lease that is still ours: whoever looks next may take it. Index: the primary key. Fence: holder and token.
UPDATE {table} SET until = '-infinity' WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s
