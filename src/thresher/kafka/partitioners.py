"""The partition of a key, as Kafka's clients choose it. Pure functions: the same key and count, the same partition.

Raising a topic's number of partitions moves keys: a sender that needs one partition for several records of a key
computes it once.
"""

import zlib

import confluent_kafka


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Return the partition by murmur2, the Java client's default: `toPositive(murmur2(key)) % partitions`."""
    return confluent_kafka.murmur2(key, partitions)


def crc32_partition(key: bytes, partitions: int) -> int:
    """Return the partition by CRC32, ruby-kafka's default and librdkafka's `consistent`: `crc32(key) % partitions`."""
    return zlib.crc32(key) % partitions
