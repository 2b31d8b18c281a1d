"""Metrics as values: families, which are fixed, and readings of them at one moment. No exporter is known here."""

import enum
from dataclasses import dataclass

from thresher.observe.histogram import Histogram


class MetricKind(enum.StrEnum):
    """How a metric behaves."""

    # It only grows, until the process ends.
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name, what it means, and the names of its labels."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The value of a metric for one set of label values, in the order of the family's labels."""

    family: Family
    labels: tuple[str, ...] = ()
    value: float | Histogram
