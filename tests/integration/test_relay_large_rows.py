"""Large rows with few keys: rows that are marked ahead do not fill the worker's memory."""

import contextlib
from pathlib import Path

from tests.relay.relaying import Place, Relaying
from thresher.devstack.stack import Stack
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

ROWS, KEYS, VALUE_BYTES = 1_300, 8, 400_000
MOST_MEGABYTES = 400
# Measured: 15 s.
PASSED_SECONDS = 120.0


class Peaks:
    """Records the peak memory of each worker of a relay, in megabytes."""

    def __init__(self, relaying: Relaying) -> None:
        self._relaying = relaying
        self.found: dict[int, float] = {}

    def look(self) -> None:
        for pid in [shard.pid for shard in self._relaying.shards if shard.pid is not None]:
            with contextlib.suppress(FileNotFoundError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text()
                self.found[pid] = int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_half_a_gigabyte_over_eight_keys_passes_through_a_small_worker(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    place = Place(stack, dsn, topic_prefix)
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        f"SELECT %s, convert_to('k' || n %% {KEYS}, 'UTF8'), convert_to(repeat('x', {VALUE_BYTES}), 'UTF8') "
        f"FROM generate_series(1, {ROWS}) n",
        place.topic,
    )
    with place.relaying(delivery=Delivery.AT_LEAST_ONCE, shards=1, producer={"compression.type": "lz4"}) as relaying:
        peaks = Peaks(relaying)

        def passed() -> bool:
            peaks.look()
            return place.pending() == 0

        relaying.until(passed, PASSED_SECONDS)
    assert peaks.found
    assert max(peaks.found.values()) < MOST_MEGABYTES
