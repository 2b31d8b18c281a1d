"""A connection whose every call is answered in time or ends it: the driver itself would wait for ever.

A limit of the server's is no such bound. A server that is stopped, or one behind a network that swallows packets, does
not keep it, while the kernel goes on to say that the line is well.
"""

import contextlib
import os
import socket
import threading
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is ended when the database has not answered a call for so long."""

    within_seconds = 30.0

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for the database, as every call does that asks it."""
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
    """End the line under a connection that another thread waits on, which is told so by an error."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
