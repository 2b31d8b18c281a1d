"""TLS for a line over TCP: one end of a connection as a converter of bytes, and the certificate that tasks know.

A certificate is made for one run of a driver. It travels in the task, and tasks accept no other: there is no authority,
and no name to compare. TLS proves the driver; `line_key` proves the task.
"""

import os
import ssl
from dataclasses import dataclass, field

from thresher.spark.frame_socket import ConnectionBroken


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its private key, both in PEM. Only the certificate leaves the driver."""

    public: str
    private: str = field(repr=False)

    def context(self) -> ssl.SSLContext:
        """Return the driver's side of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        # Python reads a key only from a file: this one is in memory, and no other process can open it.
        with os.fdopen(os.memfd_create("line-key"), "w", encoding="ascii") as file:
            file.write(self.private + self.public)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


def task_context(public: str) -> ssl.SSLContext:
    """Return the task's side of TLS, which accepts this certificate alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=public)
    return context


class TlsEnd:
    """One end: turns frames into bytes for the socket, and bytes of the socket into frames. Does no I/O."""

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=server)
        self._open = False
        # Frames that wait for the handshake.
        self._waiting = bytearray()

    def encrypt(self, frames: bytes) -> bytes:
        """Return the bytes to send now. Before the handshake is done, the frames wait. Raises `ConnectionBroken`."""
        self._waiting += frames
        try:
            if not self._open:
                self._tls.do_handshake()
                self._open = True
            if self._waiting:
                self._tls.write(self._waiting)
                self._waiting.clear()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise ConnectionBroken(f"TLS failed: {error.reason or error}") from error
        return self._to_send.read()

    def decrypt(self, received: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the socket; return frames, and bytes to send in answer. Raises `ConnectionBroken`."""
        self._received.write(received)
        answer, frames = self.encrypt(b""), bytearray()
        try:
            while self._open and (part := self._tls.read()):
                frames += part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise ConnectionBroken(f"TLS failed: {error.reason or error}") from error
        return bytes(frames), answer + self._to_send.read()
