"""A socket that carries JSON objects: four bytes of length, then the object. It never blocks.

What cannot be sent yet is kept; what was received in part is kept too. Both ends of a line use it.
"""

import json
import socket
import struct
from typing import Any

from thresher.core.errors import shorten

Frame = dict[str, Any]

_LENGTH = struct.Struct(">I")
_MOST_BYTES = 1 << 20
_CHUNK = 1 << 16


class WireBroken(Exception):  # noqa: N818 - an end of a conversation, not an error of the program
    """The other end is gone, or does not speak our language."""


class Wire:
    """One end of a connection. Not for two threads at once."""

    def __init__(self, connection: socket.socket, *, most_bytes: int = _MOST_BYTES) -> None:
        connection.setblocking(False)
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        # Small until the other end has said who it is: a stranger shall not fill our memory.
        self.most_bytes = most_bytes
        # Whether the last look found anything.
        self.heard_something = False

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other end to take them."""
        return len(self._outgoing)

    def send(self, frame: Frame) -> None:
        """Send, or keep what does not go out at once. Raises `WireBroken` when the other end is gone."""
        body = json.dumps(frame, separators=(",", ":")).encode()
        self._outgoing += _LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Send what is kept, as far as it goes."""
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            raise WireBroken(str(error)) from error

    def receive(self) -> list[Frame]:
        """Return the whole frames that have arrived. Raises `WireBroken` at the end of the stream or on garbage."""
        self.heard_something = False
        try:
            chunk = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            raise WireBroken(str(error)) from error
        if not chunk:
            raise WireBroken("the other end hung up")
        self.heard_something = True
        self._incoming += chunk
        frames = []
        while len(self._incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if length > self.most_bytes:
                raise WireBroken(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._incoming) < end:
                break
            frames.append(_parsed(bytes(self._incoming[_LENGTH.size : end])))
            del self._incoming[:end]
        return frames

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _parsed(body: bytes) -> Frame:
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireBroken(f"not a frame: {shorten(body)}") from error
    if not isinstance(frame, dict):
        raise WireBroken(f"not a frame: {shorten(body)}")
    return frame
