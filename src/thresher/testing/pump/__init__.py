"""The load generator: writers that fill an outbox as services would, and can record a history."""

from thresher.testing.pump.fleet import Fleet, PumpFailed
from thresher.testing.pump.plan import Plan
from thresher.testing.pump.writer import Tally

__all__ = ["Fleet", "Plan", "PumpFailed", "Tally"]
