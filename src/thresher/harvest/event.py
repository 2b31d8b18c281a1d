"""The events of a harvest, under the names by which programs import them."""

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
