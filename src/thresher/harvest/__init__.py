"""The relay's public interface: configuration, election, engine and relay, wired together with one life cycle.

Names are imported when they are first used, so that importing one module of this package does not import Spark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.core.errors import ThresherError
    from thresher.db import TableName
    from thresher.election.settings import ElectionKind, ElectionSettings
    from thresher.harvest.configuration import Configuration, load
    from thresher.harvest.db_backend import start_db_backend
    from thresher.harvest.event import (
        Event,
        LeaderAcquired,
        LeaderFenced,
        LeaderRefreshed,
        LeaderRevoked,
        MeterRead,
        StepHangs,
    )
    from thresher.harvest.harvest import Harvest, State
    from thresher.harvest.problem import HarvestMisused
    from thresher.relay.settings import Coordination, Delivery, Limits, Settings, TopicLocking
    from thresher.relay.topic_lock.backend import DbBackend
    from thresher.spark.driver.signals import stopped_by_signals
    from thresher.spark.session.settings import SparkOptions
else:
    import importlib

    _HOMES = {
        "thresher.core.errors": ("ThresherError",),
        "thresher.db": ("TableName",),
        "thresher.election.settings": ("ElectionKind", "ElectionSettings"),
        "thresher.harvest.configuration": ("Configuration", "load"),
        "thresher.harvest.db_backend": ("start_db_backend",),
        "thresher.harvest.event": (
            "Event",
            "LeaderAcquired",
            "LeaderFenced",
            "LeaderRefreshed",
            "LeaderRevoked",
            "MeterRead",
            "StepHangs",
        ),
        "thresher.harvest.harvest": ("Harvest", "State"),
        "thresher.harvest.problem": ("HarvestMisused",),
        "thresher.relay.settings": ("Coordination", "Delivery", "Limits", "Settings", "TopicLocking"),
        "thresher.relay.topic_lock.backend": ("DbBackend",),
        "thresher.spark.session.settings": ("SparkOptions",),
        "thresher.spark.driver.signals": ("stopped_by_signals",),
    }

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                found = globals()[name] = getattr(importlib.import_module(home), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Configuration",
    "Coordination",
    "DbBackend",
    "Delivery",
    "ElectionKind",
    "ElectionSettings",
    "Event",
    "Harvest",
    "HarvestMisused",
    "LeaderAcquired",
    "LeaderFenced",
    "LeaderRefreshed",
    "LeaderRevoked",
    "Limits",
    "MeterRead",
    "Settings",
    "SparkOptions",
    "State",
    "StepHangs",
    "TableName",
    "ThresherError",
    "TopicLocking",
    "load",
    "start_db_backend",
    "stopped_by_signals",
]
