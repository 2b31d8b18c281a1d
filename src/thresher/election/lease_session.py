"""The application name of the session over which a process competes for a lease: it tells others who the holder is.

The name ends with the beginning of the holder's id, the host and the process id. Postgres keeps 63 bytes of a name.
"""

import os
import socket
from uuid import UUID

_MOST_BYTES = 63
_HOST_LETTERS = 22


def session_name(lease: str, holder: UUID) -> str:
    """Return the name of this process's session. The prefix is not that of the sessions that a successor ends."""
    place = f"{socket.gethostname()[:_HOST_LETTERS]}:{os.getpid()}".encode("ascii", "replace").decode()
    suffix = f"{mark_of(str(holder))}{place}"
    return f"thresher-lease/{lease}"[: _MOST_BYTES - len(suffix)] + suffix


def mark_of(holder: str) -> str:
    """Return the part of the session's name that identifies the holder."""
    return f"/{holder[:8]}/"


def leader_of(holder: str, session: str | None) -> str:
    """Return a text that names the holder of a lease, from the name of its session if one was found."""
    host, colon, process = (session or "").partition(mark_of(holder))[2].rpartition(":")
    return f"process {process} on {host}" if colon and process.isdigit() else f"the holder {holder} of the lease"
