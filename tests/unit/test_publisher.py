"""Publishing without servers: choice of the backend, encoding, and validation of all messages before any is sent."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thresher.core.errors import InvalidInput
from thresher.outbox import InvalidMessage, Message
from thresher.publisher import (
    BackendUnknown,
    EncodingFailed,
    MemoryBackend,
    Publisher,
    as_json,
    backend,
    set_backend,
)
from thresher.publisher.outbox_backend import ConnectionMissing


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    set_backend("kafka")


def numbered(*numbers: int) -> list[Message]:
    return [Message(topic="t", key=str(number), value=f"v{number}") for number in numbers]


def values(kept: MemoryBackend) -> list[Any]:
    return [message.value for message in kept.messages]


def test_a_block_overrides_the_publisher_which_overrides_the_default() -> None:
    for_all, own = MemoryBackend(), MemoryBackend()
    set_backend(for_all)
    Publisher().publish_list(numbered(1))
    publisher = Publisher(backend=own)
    publisher.publish_list(numbered(2))
    with backend("memory") as outer:
        publisher.publish_list(numbered(3))
        with backend(MemoryBackend()) as inner:
            Publisher().publish_list(numbered(4))
        Publisher().publish_list(numbered(5))
    publisher.publish(numbered(6)[0])
    assert [values(each) for each in (for_all, own, outer, inner)] == [
        [b"v1"],
        [b"v2", b"v6"],
        [b"v3", b"v5"],
        [b"v4"],
    ]


def test_a_block_is_its_own_threads() -> None:
    for_all = MemoryBackend()
    set_backend(for_all)
    with backend("memory") as kept:
        other = threading.Thread(target=lambda: Publisher().publish_list(numbered(1)))
        other.start()
        other.join()
        assert kept.messages == []
    assert values(for_all) == [b"v1"]


def test_messages_are_encoded_and_keep_the_rest() -> None:
    with backend("memory") as kept:
        message = Message(topic="t", key={"id": 1}, value={"ä": [1.5]}, headers={"h": "v"}, partition=3)  # type: ignore[arg-type]
        Publisher(value=as_json, key=as_json).publish(message)
        Publisher(value=as_json).publish(Message(topic="t", key="k"))
    first, second = kept.messages
    assert (first.key, first.value) == (b'{"id":1}', '{"ä":[1.5]}'.encode())
    assert (first.headers, first.partition) == ((("h", b"v"),), 3)
    assert second.value is None, "a tombstone is no null"


def test_a_serializer_of_confluents_serves() -> None:
    from confluent_kafka.serialization import IntegerSerializer, StringSerializer

    with backend("memory") as kept:
        publisher = Publisher(value=IntegerSerializer(), key=StringSerializer("utf_8"))
        publisher.publish(Message(topic="t", key="k", value=7))  # type: ignore[arg-type]
    assert (kept.messages[0].key, kept.messages[0].value) == (b"k", b"\x00\x00\x00\x07")


@pytest.mark.parametrize(
    ("strange", "error"),
    [
        (Message(topic="t", value=object()), EncodingFailed),  # type: ignore[arg-type]
        (Message(topic="bad topic", value=b"v"), InvalidMessage),
        (Message(topic="t", value=b"v" * 2_000_000), InvalidMessage),
        (Message(topic="t", value="\ud800"), EncodingFailed),
        ("no message", InvalidMessage),
    ],
)
def test_one_unsendable_message_prevents_the_whole_publish(strange: Any, error: type[Exception]) -> None:
    with backend("memory") as kept, pytest.raises(error):
        Publisher().publish_list([*numbered(1, 2), strange])
    assert kept.messages == []


def test_an_encoder_that_gives_no_bytes_is_refused() -> None:
    with backend("memory"), pytest.raises(EncodingFailed, match="gave str, and not bytes"):
        Publisher(value=lambda given, _: given).publish_list(numbered(1))


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    for choose in (set_backend, lambda name: Publisher(backend=name)):
        with pytest.raises(BackendUnknown, match="one of kafka, kafka_async, outbox, memory, db"):
            choose("kafak")
    with pytest.raises(InvalidInput, match="bootstrap"):
        Publisher(backend="kafka").publish_list(numbered(1))
    for name in ("outbox", "db"):
        with pytest.raises(ConnectionMissing, match="the connection of your transaction"):
            Publisher(backend=name).publish_list(numbered(1))


class Falsy(MemoryBackend):
    """A backend whose truth value is False."""

    def __len__(self) -> int:
        return 0


def test_a_falsy_backend_is_accepted_and_a_wrong_object_refused() -> None:
    kept = Falsy()
    with backend(kept):
        Publisher().publish_list(numbered(1))
    assert values(kept) == [b"v1"]
    for strange in (None, 5, object()):
        with pytest.raises(BackendUnknown, match="publish, flush and close"), backend(strange):  # type: ignore[arg-type]
            pass


def test_a_serializer_adds_headers_without_changing_the_callers_list() -> None:
    def adding(given: Any, context: Any) -> bytes:
        context.headers.append(("schema", b"7"))
        return bytes(given)

    own = [("h", "v")]
    with backend("memory") as kept:
        Publisher(value=adding).publish(Message(topic="t", value=b"x", headers=own))
        Publisher(value=adding).publish(Message(topic="t", value=b"x"))
    assert [message.headers for message in kept.messages] == [(("h", b"v"), ("schema", b"7")), (("schema", b"7"),)]
    assert own == [("h", "v")]


def test_a_flush_asks_a_backend_of_the_callers_too() -> None:
    class Late(MemoryBackend):
        def flush(self, timeout_seconds: float | None = None) -> bool:
            return timeout_seconds != 1.0

    publisher = Publisher(backend=Late())
    assert (publisher.flush(1.0), publisher.flush(2.0)) == (False, True)


def test_invalid_properties_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"linger\.msx"):
        Publisher(kafka={"bootstrap.servers": "x", "linger.msx": 1}, backend="kafka").publish_list(numbered(1))


def test_memory_of_its_own_is_kept_and_forgotten() -> None:
    kept = MemoryBackend()
    with Publisher(backend=kept) as publisher:
        publisher.publish_list(numbered(1, 2))
        assert publisher.flush()
    assert values(kept) == [b"v1", b"v2"]
    kept.clear()
    assert kept.messages == []


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "publisher.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(example, {})  # noqa: S102 - it is our own
