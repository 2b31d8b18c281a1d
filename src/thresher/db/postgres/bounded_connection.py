"""A connection whose every call is answered in time or closes it: the driver itself would wait for ever.

A server-side time-out is not enough. A stopped server, or one behind a network that drops packets, does not enforce it,
and the kernel may still consider the TCP connection alive.
"""

import contextlib
import os
import socket
import threading
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the database has not answered a call within `within_seconds`."""

    within_seconds = 30.0

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for the database's answer. Every call of the driver goes through here."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            hang_up(self)

        timer = threading.Timer(self.within_seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            return super().wait(*arguments, **options)
        except psycopg.OperationalError as error:
            if late.is_set():
                raise psycopg.OperationalError(f"no answer in {self.within_seconds:g} s") from error
            raise
        finally:
            timer.cancel()


def hang_up(connection: psycopg.Connection[Any]) -> None:
    """Shut down the socket of a connection on which another thread waits: that thread gets an error."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.shutdown(socket.SHUT_RDWR)
