"""The name of the database session by which a process competes for a lease: others learn from it who holds the lease.

The name ends with a mark of the holder, its host and its process id. Postgres keeps 63 bytes of a name.
"""

import os
import socket
from uuid import UUID

_MOST_BYTES = 63
_HOST_LETTERS = 22


def session_name(lease: str, holder: UUID) -> str:
    """Return the name of this process' session. Not as the relay's own sessions are named, which a successor ends."""
    place = f"{socket.gethostname()[:_HOST_LETTERS]}:{os.getpid()}".encode("ascii", "replace").decode()
    suffix = f"{mark_of(str(holder))}{place}"
    return f"thresher-lease/{lease}"[: _MOST_BYTES - len(suffix)] + suffix


def mark_of(holder: str) -> str:
    """Return what the session's name has of its holder."""
    return f"/{holder[:8]}/"


def leader_of(holder: str, session: str | None) -> str:
    """Say who holds a lease, by the name of the session, if one was found."""
    host, colon, process = (session or "").partition(mark_of(holder))[2].rpartition(":")
    return f"process {process} on {host}" if colon and process.isdigit() else f"the holder {holder} of the lease"
