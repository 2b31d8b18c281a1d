"""The readings of a meter, and their times."""

from thresher.service.events.event import MeterRead
from thresher.service.events.meter import Meter


def test_a_meter_reads_rates_at_its_interval() -> None:
    totals = iter([100, 150, 150, 450])
    meter = Meter(5.0, lambda: next(totals), 1000.0)
    assert meter.due(1004.9) is None
    assert meter.due(1005.0) == MeterRead(relayed=150, rate=10.0, mean_rate=10.0, seconds=5.0)
    assert meter.due(1010.0) == MeterRead(relayed=150, rate=0.0, mean_rate=5.0, seconds=5.0)
    assert meter.due(1020.0) == MeterRead(relayed=450, rate=30.0, mean_rate=17.5, seconds=10.0)
