"""The figures of queues, of one service: counted where things happen, read as metrics."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from thresher.observe.histogram import Histogram, Scale
from thresher.observe.metric import Family, MetricKind, Reading
from thresher.observe.tally import Number
from thresher.queue.message import Ack, Nack, Reject, Settlement

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
SEND_SECONDS = Scale("send_seconds", _SECONDS)
RECEIVE_TO_ACK_SECONDS = Scale("receive_to_ack_seconds", _SECONDS)
_LABELS = ("topic",)


def _family(name: str, kind: MetricKind, help_: str) -> Family:
    return Family(name=f"thresher_queue_{name}", kind=kind, help=help_, labels=_LABELS)


# By the name under which they are counted.
_COUNTERS = {
    "produced": _family("messages_produced", MetricKind.COUNTER, "Messages that the broker has confirmed"),
    "send_unknown": _family("sends_unknown", MetricKind.COUNTER, "Sends that the broker did not answer in time"),
    "send_refused": _family("sends_refused", MetricKind.COUNTER, "Messages that were refused"),
    "consumed": _family("messages_consumed", MetricKind.COUNTER, "Messages that applications have received"),
    "acked": _family("messages_acked", MetricKind.COUNTER, "Messages that were processed"),
    "given_back": _family(
        "messages_given_back", MetricKind.COUNTER, "Messages that went back to their queue, by a nack or a close"
    ),
    "rejected": _family("messages_rejected", MetricKind.COUNTER, "Messages that applications have rejected"),
    "dead": _family("messages_dead", MetricKind.COUNTER, "Messages whose Start was refused: they are dead letters"),
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
        "Messages that waited here without a KeepAlive for the redelivery time-out: they were given back",
    ),
    "hand_offs": _family("hand_offs", MetricKind.COUNTER, "Transactions that started messages"),
    "hand_offs_given_up": _family(
        "hand_offs_given_up", MetricKind.COUNTER, "Batches that another consumer, or the tracker, has taken over"
    ),
    "rebalances": _family("rebalances", MetricKind.COUNTER, "Times that a consumer was given partitions anew"),
    "skipped": _family("records_skipped", MetricKind.COUNTER, "Records of other queues that were read and left out"),
    "removed": _family(
        "records_removed", MetricKind.COUNTER, "Offsets below the log's first: records that retention removed unread"
    ),
}  # fmt: skip
IN_PROGRESS = _family("messages_in_progress", MetricKind.GAUGE, "Messages that are started and not settled")
_HISTOGRAMS = {
    SEND_SECONDS: _family("send_seconds", MetricKind.HISTOGRAM, "From a send to the broker's confirmation"),
    RECEIVE_TO_ACK_SECONDS: _family("receive_to_ack_seconds", MetricKind.HISTOGRAM, "From a receive to its ack"),
}
FAMILIES = (*_COUNTERS.values(), IN_PROGRESS, *_HISTOGRAMS.values())


class Figures:
    """Takes figures from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Number] = defaultdict(int)

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure."""
        with self._lock:
            self._counts[name] += amount

    def observe(self, scale: Scale, value: float) -> None:
        """Add a value to a histogram. Called for every message: so both figures behind one lock."""
        place = scale.figures[bisect_left(scale.bounds, value)]
        with self._lock:
            self._counts[place] += 1
            self._counts[scale.sum_figure] += value

    def settled(self, settlement: Settlement, seconds: float | None) -> None:
        """Count the end of a message's progress, so many seconds after it was received; None: it was not."""
        match settlement:
            case Ack():
                self.observe(RECEIVE_TO_ACK_SECONDS, seconds or 0.0)
            case Nack():
                self.count("given_back")
            case Reject():
                self.count("rejected")

    def read(self, topic: str, in_progress: Callable[[], int]) -> Iterator[Reading]:
        """Yield every metric as it is now."""
        with self._lock:
            counts = dict(self._counts)
        # Each of them was observed.
        counts["produced"] = Histogram.read(SEND_SECONDS, counts).count
        counts["acked"] = Histogram.read(RECEIVE_TO_ACK_SECONDS, counts).count
        for name, family in _COUNTERS.items():
            yield Reading(family=family, labels=(topic,), value=float(counts.get(name, 0)))
        yield Reading(family=IN_PROGRESS, labels=(topic,), value=float(in_progress()))
        for scale, family in _HISTOGRAMS.items():
            yield Reading(family=family, labels=(topic,), value=Histogram.read(scale, counts))
