"""Our partitioners choose the same partitions as librdkafka: compared with records of real producers."""

import pytest
from confluent_kafka import Producer

from tests.servers import create_topic
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord
from thresher.kafka.partitioners import crc32_partition, murmur2_partition

PARTITIONS = 7
KEYS = [b"", b"\x00", b"\xff\xfe", *(f"key-{number}".encode() for number in range(200))]


@pytest.mark.parametrize(
    ("partitioner", "partition"), [("murmur2_random", murmur2_partition), ("consistent", crc32_partition)]
)
def test_keys_get_the_partition_that_librdkafka_chooses(
    stack: Stack, topic_prefix: str, partitioner: str, partition: object
) -> None:
    topic, admin = f"{topic_prefix}{partitioner}", Admin(stack.kafka.bootstrap)
    create_topic(admin, topic, PARTITIONS)
    config = {"bootstrap.servers": stack.kafka.bootstrap}
    producer = Producer({**config, "partitioner": partitioner})
    for key in KEYS:
        producer.produce(topic, b"", key)
    assert producer.flush(60) == 0
    found: dict[bytes | None, int] = {}
    with AssignedReader(topic, config) as reader:
        for _ in range(600):
            found.update({each.key: each.partition for each in reader.poll(0.1) if isinstance(each, ConsumerRecord)})
            if len(found) == len(KEYS):
                break
    assert callable(partition)
    assert found == {key: partition(key, PARTITIONS) for key in KEYS}
    assert len(set(found.values())) == PARTITIONS
