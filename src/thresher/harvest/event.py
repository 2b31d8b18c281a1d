"""The events of a harvest, for programs to import."""

from thresher.service.events.event import (
    Event,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    MeterRead,
    StepHangs,
)

__all__ = ["Event", "LeaderAcquired", "LeaderFenced", "LeaderRefreshed", "LeaderRevoked", "MeterRead", "StepHangs"]
