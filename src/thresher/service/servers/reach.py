"""Whether the servers of a process answer: when each was last reached, and the failures since then.

A server is up if the last attempt to reach it succeeded, at most a minute ago. Every part that talks to a server notes
the result here: the probes, take-overs, and a leader's watch. This module asks no server.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from thresher.core.errors import kind_of
from thresher.service.health import ServerHealth

# The kind of problem of a process whose election does not answer.
ELECTION_WAITS = "election_waits"
# An older success says nothing about the present, because an attempt may hang.
FRESH_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """The attempts to reach one server so far. Times are monotonic."""

    server: str
    # When the server was last reached; before the first time, when the process began.
    since: float
    reached: bool = False
    # The failed attempts since then, and kind and text of the last failure.
    failures: int = 0
    kind: str = ""
    text: str = ""
    # A leader's check failed. A later probe, which only connects, does not prove that checks would succeed.
    unanswered: bool = False

    def succeeded(self, now: float) -> "Contact":
        """Return the contact after an attempt that reached the server."""
        return Contact(server=self.server, since=now, reached=True)

    def failed(self, error: BaseException, *, check: bool = False) -> "Contact":
        """Return the contact after an attempt that failed."""
        text = str(error) or type(error).__name__
        return replace(
            self, failures=self.failures + 1, kind=kind_of(error), text=text, unanswered=check or self.unanswered
        )

    def health(self, now: float) -> ServerHealth:
        """Decide whether the server is up."""
        seconds = now - self.since
        if self.failures:
            kind, text = self.kind, self.text
        elif not self.reached:
            kind, text = f"{self.server}_lost", "it has not been reached yet"
        elif seconds > FRESH_SECONDS:
            kind, text = f"{self.server}_lost", f"it has not answered for {seconds:.0f} s"
        else:
            return ServerHealth(up=True, seconds=seconds)
        return ServerHealth(up=False, kind=kind, text=text, seconds=seconds, failures=self.failures)


class Reach:
    """The contacts to all servers of one process. Safe from any thread."""

    def __init__(self, servers: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._contacts = {server: Contact(server=server, since=clock()) for server in servers}
        # Returns why the election does not answer; None while it does.
        self.election: Callable[[], str | None] = lambda: "it has not begun"
        self._heard = clock()

    def succeeded(self, server: str, *, probe: bool = False) -> None:
        """Note that a server was reached. A name that is no server's is ignored."""
        with self._lock:
            contact = self._contacts.get(server)
            if contact is not None and not (probe and contact.unanswered):
                self._contacts[server] = contact.succeeded(self._clock())

    def failed(self, server: str, error: BaseException, *, check: bool = False) -> None:
        """Note that a server was not reached, or that a leader's check failed. Other names are ignored."""
        with self._lock:
            if (contact := self._contacts.get(server)) is not None:
                self._contacts[server] = contact.failed(error, check=check)

    def checks_ended(self) -> None:
        """Note that a leader's checks have ended: from now on, probes decide."""
        with self._lock:
            self._contacts = {name: replace(each, unanswered=False) for name, each in self._contacts.items()}

    def all_succeeded(self) -> None:
        """Note that every server was reached, which a successful take-over proves."""
        for server in tuple(self._contacts):
            self.succeeded(server)

    def health(self, *, standby: bool = False) -> dict[str, ServerHealth]:
        """Return the health of each server. For a standby, the election is one more."""
        with self._lock:
            now = self._clock()
            found = {server: contact.health(now) for server, contact in self._contacts.items()}
            trouble = self.election()
            self._heard = now if trouble is None else self._heard
            if standby:
                found["election"] = ServerHealth(
                    up=trouble is None, kind=ELECTION_WAITS, text=trouble or "", seconds=now - self._heard
                )
        return found
