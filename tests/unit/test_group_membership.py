"""Group metadata of a non-member is distinguished from a member's, because a broker would accept its offsets."""

import struct

import pytest
from confluent_kafka import Consumer

from thresher.kafka.group.membership import is_member

# A flag in the place of a static member's name.
NO_INSTANCE = b"\x01"


def metadata(generation: int, member: bytes) -> bytes:
    return b"CGMDv2:" + struct.pack("=i", generation) + b"group\0" + member + b"\0" + NO_INSTANCE


def test_a_consumer_that_never_joined_is_no_member() -> None:
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "group"})
    try:
        assert not is_member(consumer.consumer_group_metadata())
    finally:
        consumer.close()


def test_the_clients_own_form_is_the_one_we_read() -> None:
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "group"})
    try:
        assert consumer.consumer_group_metadata() == metadata(-1, b"")
    finally:
        consumer.close()


@pytest.mark.parametrize("generation", [0, 1, 2**31 - 1])
def test_a_generation_and_a_name_are_a_member(generation: int) -> None:
    assert is_member(metadata(generation, b"rdkafka-1"))


def test_a_generation_without_a_name_is_no_member() -> None:
    assert not is_member(metadata(5, b""))


def test_a_name_without_a_generation_is_no_member() -> None:
    assert not is_member(metadata(-1, b"rdkafka-1"))


@pytest.mark.parametrize("form", [b"", b"CGMDv1:group", b"CGMDv3:\0\0\0\0group\0member\0", None, "CGMDv2:", object()])
def test_another_form_is_an_error_and_no_guess(form: object) -> None:
    with pytest.raises(TypeError, match="a form that we do not know"):
        is_member(form)
