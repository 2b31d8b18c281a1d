"""`start_db_backend`: relays an outbox in threads of a program, by topic locks. The name is Deimos'."""

from dataclasses import replace

from thresher.core.errors import shorten
from thresher.harvest.form import LOCKED_ROWS
from thresher.harvest.problem import HarvestMisused
from thresher.harvest.settings_check import check_settings
from thresher.relay.settings import Coordination, Limits, Settings
from thresher.relay.topic_lock.backend import DbBackend

_MOST_THREADS = 64


def start_db_backend(settings: Settings, *, threads: int = 2) -> DbBackend:
    """Start this number of worker threads, without Spark, and return the running backend. `stop` ends them cleanly.

    Any number of processes may do this for one outbox, with the same settings, also beside relays with `coordination:
    topic-lock`. A batch has at most 1,000 rows, unless the settings have their own limits. The program stops the
    backend on a signal: its handler calls `request_stop`, or `stopped_by_signals(backend)` does. Raises
    `ConfigurationInvalid` for invalid settings, and starts nothing.
    """
    if not _is_number(threads) or not 1 <= threads <= _MOST_THREADS:
        raise HarvestMisused(f"threads={shorten(threads)}: a number from 1 to {_MOST_THREADS} is needed")
    told = replace(settings, coordination=Coordination.TOPIC_LOCK)
    if told.limits == Limits():
        told = replace(told, limits=replace(told.limits, batch_rows=LOCKED_ROWS))
    backend = DbBackend(check_settings(told).settings, threads=threads)
    backend.start()
    return backend


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
