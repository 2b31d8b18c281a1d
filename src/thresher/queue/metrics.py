"""The metrics of one queue service: counted by its parts, read as metric families."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from thresher.observe.figure_sink import Number
from thresher.observe.histogram import Histogram, Scale
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.queue.message import Ack, Nack, Reject, Settlement

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
SEND_SECONDS = Scale("send_seconds", _SECONDS)
RECEIVE_TO_ACK_SECONDS = Scale("receive_to_ack_seconds", _SECONDS)
_LABELS = ("topic",)


def _family(name: str, kind: MetricKind, help_: str) -> Family:
    return Family(name=f"thresher_queue_{name}", kind=kind, help=help_, labels=_LABELS)


# By the name that the code counts under.
_COUNTERS = {
    "produced": _family("messages_produced", MetricKind.COUNTER, "Messages that the broker has confirmed"),
    "send_unknown": _family("sends_unknown", MetricKind.COUNTER, "Sends that the broker did not answer in time"),
    "send_refused": _family("sends_refused", MetricKind.COUNTER, "Messages that the client or the broker refused"),
    "consumed": _family("messages_consumed", MetricKind.COUNTER, "Messages that applications have received"),
    "acked": _family("messages_acked", MetricKind.COUNTER, "Messages that were processed"),
    "given_back": _family(
        "messages_given_back", MetricKind.COUNTER, "Messages returned to their queue by a nack or a close"
    ),
    "rejected": _family("messages_rejected", MetricKind.COUNTER, "Messages that applications have rejected"),
    "dead": _family("messages_dead", MetricKind.COUNTER, "Dead letters of messages whose Start the broker refused"),
    "keep_alives": _family("keep_alives", MetricKind.COUNTER, "KeepAlive markers that the broker has confirmed"),
    "markers_unknown": _family(
        "markers_unknown", MetricKind.COUNTER, "Acks, nacks and rejects that the broker did not confirm"
    ),
    "keep_alives_unknown": _family(
        "keep_alives_unknown", MetricKind.COUNTER, "KeepAlive markers that the broker did not confirm"
    ),
    "expired": _family(
        "messages_expired",
        MetricKind.COUNTER,
        "Messages given back unreceived: no KeepAlive was confirmed within the redelivery time-out",
    ),
    "hand_offs": _family("hand_offs", MetricKind.COUNTER, "Transactions that started messages"),
    "hand_offs_given_up": _family(
        "hand_offs_given_up", MetricKind.COUNTER, "Batches given up, to be read again or redelivered"
    ),
    "rebalances": _family("rebalances", MetricKind.COUNTER, "Assignments of partitions to consumers"),
    "skipped": _family("records_skipped", MetricKind.COUNTER, "Records of other queues that were read and skipped"),
    "unreadable": _family(
        "unreadable_batches", MetricKind.COUNTER, "Tries to read a batch that the client cannot decompress"
    ),
    "hidden": _family(
        "hidden_partitions", MetricKind.COUNTER, "Minutes for which an open transaction hid records of a partition"
    ),
    "removed": _family(
        "records_removed", MetricKind.COUNTER, "Offsets that retention removed before they were read"
    ),
}  # fmt: skip
IN_PROGRESS = _family("messages_in_progress", MetricKind.GAUGE, "Messages that are started and not settled")
_HISTOGRAMS = {
    SEND_SECONDS: _family("send_seconds", MetricKind.HISTOGRAM, "From a send to the broker's confirmation"),
    RECEIVE_TO_ACK_SECONDS: _family("receive_to_ack_seconds", MetricKind.HISTOGRAM, "From a receive to its ack"),
}
FAMILIES = (*_COUNTERS.values(), IN_PROGRESS, *_HISTOGRAMS.values())


class Figures:
    """The counters and histograms of one service. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Number] = defaultdict(int)

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += amount

    def observe(self, scale: Scale, value: float) -> None:
        """Add a value to a histogram. One lock for bucket and sum, because every message comes here."""
        place = scale.figures[bisect_left(scale.bounds, value)]
        with self._lock:
            self._counts[place] += 1
            self._counts[scale.sum_figure] += value

    def settled(self, settlement: Settlement, seconds: float | None) -> None:
        """Count a settled message. `seconds` is the time since its receipt, None if it was not received."""
        match settlement:
            case Ack():
                self.observe(RECEIVE_TO_ACK_SECONDS, seconds or 0.0)
            case Nack():
                self.count("given_back")
            case Reject():
                self.count("rejected")

    def read(self, topic: str, in_progress: Callable[[], int]) -> Iterator[Reading]:
        """Yield the current value of every metric."""
        with self._lock:
            counts = dict(self._counts)
        # Every send and every ack is in a histogram, so these counters are read from there.
        counts["produced"] = Histogram.read(SEND_SECONDS, counts).count
        counts["acked"] = Histogram.read(RECEIVE_TO_ACK_SECONDS, counts).count
        for name, family in _COUNTERS.items():
            yield Reading(family=family, labels=(topic,), value=float(counts.get(name, 0)))
        yield Reading(family=IN_PROGRESS, labels=(topic,), value=float(in_progress()))
        for scale, family in _HISTOGRAMS.items():
            yield Reading(family=family, labels=(topic,), value=Histogram.read(scale, counts))
