"""A non-blocking socket that carries frames: four bytes of length, then a JSON object.

Bytes that cannot be sent yet are queued; a frame that was received in part waits for its rest. Both ends of a line,
the connection between a task and the driver, use it. From `encrypt_by` on, all frames pass through TLS.
"""

import json
import socket
import struct
from typing import Any, Protocol

from thresher.core.errors import shorten

Frame = dict[str, Any]

_LENGTH = struct.Struct(">I")
_MOST_BYTES = 1 << 20
_CHUNK = 1 << 16


class ConnectionBroken(Exception):  # noqa: N818 - an ordinary end of a connection
    """The other end closed the connection, or sent bytes that are not a frame."""


class Encryption(Protocol):
    """Converts between frames and the bytes on the socket, as `tls.TlsEnd` does."""

    def encrypt(self, frames: bytes) -> bytes:
        """Return the bytes to send now."""

    def decrypt(self, received: bytes) -> tuple[bytes, bytes]:
        """Return frames, and bytes to send in answer."""


class FrameSocket:
    """One end of a connection. Not thread-safe."""

    def __init__(self, connection: socket.socket, *, most_bytes: int = _MOST_BYTES) -> None:
        connection.setblocking(False)
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._encryption: Encryption | None = None
        # The longest frame to accept: small until the hello, so that an unknown client cannot fill our memory.
        self.most_bytes = most_bytes
        # Whether the last `receive` found any bytes.
        self.received_bytes = False

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """The number of queued bytes, which the socket has not accepted yet."""
        return len(self._outgoing)

    def encrypt_by(self, encryption: Encryption) -> None:
        """Encrypt all frames from now on. Raises `ConnectionBroken` if the other end has sent more than a frame."""
        if self._incoming:
            raise ConnectionBroken("bytes have arrived before the encryption")
        self._encryption = encryption
        self._outgoing += encryption.encrypt(b"")
        self.flush()

    def send(self, frame: Frame) -> None:
        """Send a frame; bytes that the socket does not accept now are queued. Raises `ConnectionBroken`."""
        body = json.dumps(frame, separators=(",", ":")).encode()
        content = _LENGTH.pack(len(body)) + body
        self._outgoing += content if self._encryption is None else self._encryption.encrypt(content)
        self.flush()

    def flush(self) -> None:
        """Send queued bytes, as many as the socket accepts now. Raises `ConnectionBroken`."""
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionBroken(str(error)) from error

    def receive(self) -> list[Frame]:
        """Return the complete frames. Raises `ConnectionBroken` at the end of the stream or on an invalid frame."""
        self.received_bytes = False
        try:
            chunk = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionBroken(str(error)) from error
        if not chunk:
            raise ConnectionBroken("the other end closed the connection")
        self.received_bytes = True
        if self._encryption is not None:
            chunk, answer = self._encryption.decrypt(chunk)
            if answer:
                self._outgoing += answer
                self.flush()
        self._incoming += chunk
        frames = []
        while len(self._incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if length > self.most_bytes:
                raise ConnectionBroken(f"a frame of {length} bytes is longer than the limit of {self.most_bytes}")
            end = _LENGTH.size + length
            if len(self._incoming) < end:
                break
            frames.append(_parsed(bytes(self._incoming[_LENGTH.size : end])))
            del self._incoming[:end]
        return frames

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _parsed(body: bytes) -> Frame:
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConnectionBroken(f"not a frame: {shorten(body)}") from error
    if not isinstance(frame, dict):
        raise ConnectionBroken(f"not a frame: {shorten(body)}")
    return frame
