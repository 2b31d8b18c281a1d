"""Relays that share an outbox by locking its topics: no leader, any number of processes."""
