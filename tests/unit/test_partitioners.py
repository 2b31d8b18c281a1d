"""Keys get the same partitions as with other clients."""

import pytest

from thresher.kafka.partitioners import crc32_partition, murmur2_partition

# From the Java client's test of murmur2, as signed 32-bit numbers.
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
# Results of zlib, which ruby-kafka's partitioner uses. The first is CRC32's published check value.
CRC32 = {b"123456789": 0xCBF43926, b"": 0, b"The quick brown fox jumps over the lazy dog": 0x414FA339}
COUNTS = [1, 2, 3, 7, 12, 64, 1000, 2**31 - 1]


@pytest.mark.parametrize("partitions", COUNTS)
@pytest.mark.parametrize(("key", "murmur2"), JAVA_MURMUR2.items())
def test_murmur2_is_the_java_clients(key: bytes, murmur2: int, partitions: int) -> None:
    assert murmur2_partition(key, partitions) == (murmur2 & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("partitions", COUNTS)
@pytest.mark.parametrize(("key", "crc32"), CRC32.items())
def test_crc32_is_ruby_kafkas(key: bytes, crc32: int, partitions: int) -> None:
    assert crc32_partition(key, partitions) == crc32 % partitions
