"""Makes the store of a relay's outbox. No other module knows which store it is."""

from thresher.db.postgres.sessions import connect, connect_within
from thresher.db.postgres.store import Connect, PostgresStore
from thresher.relay.settings import Settings


def store_of(settings: Settings, make: Connect = connect) -> PostgresStore:
    """Return the store of the configured outbox; `make` opens its connections."""
    return PostgresStore(settings.data_source, settings.outbox, settings.shape, settings.settle, make=make)


def driver_store_of(settings: Settings, seconds: float = 30.0) -> PostgresStore:
    """Return a store for the driver. A statement that is not answered within `seconds` raises `DatabaseLost`."""
    return store_of(settings, connect_within(seconds))
