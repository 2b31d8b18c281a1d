"""Records of a shard that were sent and are not settled."""

from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.shard.in_flight import MOST_KEYS, InFlight
from thresher.delivery.shard.meter import Meter
from thresher.spark.worker.shard import Figures


class Gauges:
    def __init__(self) -> None:
        self.shown: dict[str, float] = {}

    def gauge(self, name: str, value: float) -> None:
        self.shown[name] = value

    def count(self, name: str, amount: float = 1) -> None: ...


def test_records_count_until_their_transaction_is_settled() -> None:
    gauges = Gauges()
    in_flight = InFlight(gauges, by_key=True)
    in_flight.sent([b"a", b"b"])
    in_flight.sent([b"c", None])
    assert gauges.shown == {"in_flight_rows": 4, "in_flight_keys": 4}
    assert in_flight.keys() == ["a", "b", "c"]
    in_flight.settled()
    assert gauges.shown["in_flight_rows"] == 2
    assert in_flight.keys() == ["c"]
    in_flight.settled()
    assert gauges.shown == {"in_flight_rows": 0, "in_flight_keys": 0}
    assert in_flight.keys() == []


def test_another_producer_has_nothing_in_flight() -> None:
    gauges = Gauges()
    in_flight = InFlight(gauges, by_key=False)
    in_flight.sent([b"a"])
    in_flight.forget()
    assert (gauges.shown["in_flight_rows"], in_flight.keys()) == (0, [])


def test_a_meter_shows_the_keys_in_flight_as_text() -> None:
    meter = Meter(Gauges(), waves=True)
    stored = Row(1, 0, "t", b"stored", Record("t", b"v", b"\xff sent", -1, 0, None))
    meter.sent(RowList([stored]))
    told = meter.in_flight.keys()
    assert told[0].encode("latin-1") == b"\xff sent"
    meter.settled(0.1)
    assert meter.in_flight.keys() == []


def test_at_most_a_thousand_short_keys_are_reported() -> None:
    in_flight = InFlight(Gauges(), by_key=True)
    in_flight.sent([b"%d" % number for number in range(3 * MOST_KEYS)] * 2)
    assert len(in_flight.keys()) == MOST_KEYS
    in_flight.forget()
    in_flight.sent([b"\xff" * 3_000 + b"%d" % number for number in range(10)])
    figures = Figures()
    figures.notes["keys"] = in_flight.keys
    assert 1 <= len(figures.current_notes()["keys"]) < 10


def test_an_oversized_note_is_left_out_of_a_heartbeat() -> None:
    figures = Figures()
    figures.notes.update(long=lambda: ["x" * 100_000], short=lambda: ["y"])
    assert figures.current_notes() == {"short": ["y"]}
