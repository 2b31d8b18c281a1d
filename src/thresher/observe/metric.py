"""Metrics as values: fixed families, and readings of them at one moment. Knows no exporter."""

import enum
from dataclasses import dataclass

from thresher.observe.histogram import Histogram


class MetricKind(enum.StrEnum):
    """The type of a metric, as Prometheus has it."""

    # A counter only grows, until the process ends.
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric: its name, its help text, and the names of its labels."""

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
