"""How much a consumer fetches at once, which bounds the memory that a hostile producer can make it need.

librdkafka decompresses an answer to a fetch, all batches of all its partitions, before any record can be looked at. Its
own default is a megabyte for each partition: hundreds of small batches, each with megabytes of zeros.

1. An answer has at most `FETCH_BYTES`, of all partitions of a broker together. While records wait to be taken, up to
   `queued.max.messages.kbytes`, the client fetches no more.
2. A larger batch is fetched alone, so every reader makes progress. `receive.message.max.bytes` must hold it.
3. So an answer becomes at most 1 GB: zstd holds less than 32,768 times its size, and a batch of gzip of 1 MB, Kafka's
   default for `max.message.bytes`, a thousand times its size.
"""

from collections.abc import Mapping
from typing import Any

# Enough for 50 MB/s from a broker that answers in half a millisecond.
FETCH_BYTES = 32_768
_OF_A_PARTITION = ("fetch.message.max.bytes", "max.partition.fetch.bytes")
# A consumer's only use of it is a lower bound of `fetch.max.bytes`: a producer's value would undo ours.
_LEAST_MESSAGE_BYTES = 1_000


def bounded_fetches(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's properties with sizes of fetches. Those that `properties` has are kept.

    A larger fetch of a partition alone also makes the whole answer larger: else it would have no effect.
    """
    asked = [int(size) for name in _OF_A_PARTITION if (size := str(properties.get(name, ""))).isdecimal()]
    return {
        "fetch.message.max.bytes": FETCH_BYTES,
        "fetch.max.bytes": max((FETCH_BYTES, *asked)),
        "queued.max.messages.kbytes": 16_384,
        **properties,
        "message.max.bytes": _LEAST_MESSAGE_BYTES,
    }
