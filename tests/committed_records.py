"""Reads the committed records of a topic, for tests."""

from collections.abc import Mapping
from typing import Any

from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord, EndOfPartition


def committed_records(topic: str, kafka: Mapping[str, Any]) -> list[ConsumerRecord]:
    """Return the committed records of a topic up to its end, with their keys and headers."""
    found: list[ConsumerRecord] = []
    with AssignedReader(topic, kafka) as reader:
        left = set(reader.partitions)
        while left:
            for event in reader.poll(1.0):
                if isinstance(event, ConsumerRecord):
                    found.append(event)
                elif isinstance(event, EndOfPartition):
                    left.discard(event.partition)
    return found
