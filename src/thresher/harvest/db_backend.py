"""`start_db_backend`: Deimos' name for workers that relay an outbox in threads of a program, by topic locks."""

from dataclasses import replace

from thresher.core.errors import shorten
from thresher.harvest.form import LOCKED_ROWS
from thresher.harvest.judgement import judge
from thresher.harvest.problem import HarvestMisused
from thresher.relay.settings import Coordination, Limits, Settings
from thresher.relay.topic_lock.backend import DbBackend

_MOST_THREADS = 64


def start_db_backend(settings: Settings, *, threads: int = 2) -> DbBackend:
    """Start so many workers in threads, without Spark, and return them running. `stop` ends them in good order.

    Any number of processes may do so for one outbox, with the same settings, and relays with `coordination: topic-lock`
    beside them. A batch has 1,000 rows, unless the settings have limits of their own. The program ends it: a signal
    handler of its own calls `request_stop`, or `stopped_by_signals(backend)` does. Raises `ConfigurationInvalid` for
    settings that cannot work, and starts nothing.
    """
    if not _is_number(threads) or not 1 <= threads <= _MOST_THREADS:
        raise HarvestMisused(f"threads={shorten(threads)}: a number from 1 to {_MOST_THREADS} is needed")
    told = replace(settings, coordination=Coordination.TOPIC_LOCK)
    if told.limits == Limits():
        told = replace(told, limits=replace(told.limits, batch_rows=LOCKED_ROWS))
    backend = DbBackend(judge(told).settings, threads=threads)
    backend.start()
    return backend


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
