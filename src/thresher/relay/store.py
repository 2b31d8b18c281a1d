"""The store of a relay's outbox: chosen here, and nowhere else."""

from thresher.db.postgres.sessions import connect, connect_within
from thresher.db.postgres.store import Connect, PostgresStore
from thresher.relay.settings import Settings


def store_of(settings: Settings, make: Connect = connect) -> PostgresStore:
    """Return the store that the settings name; `make` opens its connections."""
    return PostgresStore(settings.data_source, settings.outbox, settings.shape, settings.settle, make=make)


def driver_store_of(settings: Settings, seconds: float = 30.0) -> PostgresStore:
    """Return the store for the driver, each of whose statements is answered within so long or raises `DatabaseLost`."""
    return store_of(settings, connect_within(seconds))
