"""Metrics in Prometheus' format. Only this module imports Prometheus' client."""

from collections.abc import Iterable, Iterator, Sequence
from math import isinf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from thresher.observe.histogram import Histogram
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.observe.server import Answer


class Readings(Collector):
    """Gives the readings of one moment to Prometheus' client. Families without a reading are listed as well."""

    def __init__(self, families: Sequence[Family], readings: Iterable[Reading]) -> None:
        self._families = families
        self._readings: dict[str, list[Reading]] = {family.name: [] for family in families}
        for reading in readings:
            self._readings[reading.family.name].append(reading)

    def collect(self) -> Iterator[Metric]:
        """Yield every family with its samples."""
        for family in self._families:
            yield _metric(family, self._readings[family.name])


def scrape(families: Sequence[Family], readings: Iterable[Reading]) -> Answer:
    """Return the answer to a scrape, in the text format that every Prometheus reads."""
    return Answer(kind=CONTENT_TYPE_PLAIN_0_0_4, content=generate_latest(Readings(families, readings)))


def _metric(family: Family, readings: Sequence[Reading]) -> Metric:
    if family.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for reading in readings:
            if isinstance(reading.value, Histogram):
                buckets = [(_text(bound), float(count)) for bound, count in reading.value.cumulative()]
                histogram.add_metric(reading.labels, buckets, reading.value.sum)
        return histogram
    kind = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for reading in readings:
        if not isinstance(reading.value, Histogram):
            metric.add_metric(reading.labels, reading.value)
    return metric


def _text(bound: float) -> str:
    return "+Inf" if isinf(bound) else repr(float(bound))
