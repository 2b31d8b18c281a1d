import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from thresher.spark.frame_socket import ConnectionBroken, FrameSocket
from thresher.spark.signal_safe_event import SignalSafeEvent


@pytest.fixture
def ends() -> Iterator[tuple[FrameSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    near = FrameSocket(ours, most_bytes=1000)
    yield near, theirs
    near.close()
    theirs.close()


def packed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_frames_arrive_whole_in_any_fragmentation(ends: tuple[FrameSocket, socket.socket]) -> None:
    near, other = ends
    frames = [{"is": "hello", "text": "ü" * n} for n in range(20)]
    stream = b"".join(packed(json.dumps(frame).encode()) for frame in frames)
    received = []
    for start in range(0, len(stream), 7):
        other.sendall(stream[start : start + 7])
        received += near.receive()
    assert received == frames


def test_an_empty_socket_gives_no_frame(ends: tuple[FrameSocket, socket.socket]) -> None:
    assert ends[0].receive() == []


@pytest.mark.parametrize(
    "garbage",
    [
        packed(b"[1]"),
        packed(b"{"),
        packed(b"\xff\xfe"),
        struct.pack(">I", 1001),
        b"GET / HTTP/1.1\r\n",
        packed(b"[" * 900),
    ],
)
def test_garbage_breaks_the_connection(ends: tuple[FrameSocket, socket.socket], garbage: bytes) -> None:
    near, other = ends
    other.sendall(garbage)
    with pytest.raises(ConnectionBroken):
        near.receive()


def test_the_end_of_the_stream_breaks_the_connection(ends: tuple[FrameSocket, socket.socket]) -> None:
    near, other = ends
    other.close()
    with pytest.raises(ConnectionBroken, match="closed the connection"):
        near.receive()


def test_unsent_bytes_are_kept_and_sent_later(ends: tuple[FrameSocket, socket.socket]) -> None:
    near, other = ends
    frames = [{"number": number, "text": "x" * 500} for number in range(2000)]
    for frame in frames:
        near.send(frame)
    assert near.unsent > 0
    reader = FrameSocket(other)
    received: list[object] = []
    while len(received) < len(frames):
        received += reader.receive()
        near.flush()
    assert received == frames
    assert near.unsent == 0


def test_a_bell_wakes_at_once_and_stays_set() -> None:
    event = SignalSafeEvent()
    assert not event.wait(0.0)
    event.set("first")
    event.set("second")
    began = time.monotonic()
    assert event.wait(600.0)
    assert time.monotonic() - began < 300
    assert event.why == "first"
