"""The driver's end of all lines: a listening socket, and one caller per task that rang.

1. A caller has five seconds for its hello, and may send little before it.
2. A wrong token is hung up on without a word; another version is refused by name; whether the attempt is the newest is
   for the desk to say.
3. Welcomed callers get a beat whenever it is time.
"""

import contextlib
import errno
import hmac
import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from thresher import __version__
from thresher.core.errors import shorten
from thresher.spark.driver.loop import Loop
from thresher.spark.process import Process
from thresher.spark.spec import Address
from thresher.spark.wire import Frame, Wire, WireBroken

logger = logging.getLogger(__name__)

_HELLO_SECONDS = 5.0
_HELLO_BYTES = 4096
_WELCOMED_BYTES = 1 << 20
_MOST_STRANGERS = 256
# A caller that takes nothing for so long that this much waits for it is as good as gone.
_MOST_UNSENT = 1 << 20
_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a task says of itself in its hello."""

    shard: int
    attempt: int
    task: int
    host: str
    process: Process
    parent: Process | None


class Desk(Protocol):
    """Who decides about callers."""

    def on_hello(self, caller: "Caller", introduction: Introduction) -> None:
        """Welcome or refuse the caller."""

    def on_frame(self, caller: "Caller", introduction: Introduction, frame: Frame) -> None:
        """Take what a welcomed caller says."""

    def on_hang_up(self, caller: "Caller", introduction: Introduction) -> None:
        """A welcomed caller is gone."""


class Caller:
    """A task at the other end of a line."""

    def __init__(self, wire: Wire, drop: Callable[["Caller"], None]) -> None:
        self.introduction: Introduction | None = None
        self.welcomed = False
        self.called = time.monotonic()
        self.wire = wire
        self._drop = drop

    def welcome(self) -> None:
        """Let it in."""
        self.welcomed = True
        self.wire.most_bytes = _WELCOMED_BYTES
        self.send({"is": "welcome"})

    def refuse(self, why: str) -> None:
        """Send it away with a reason."""
        self.send({"is": "refused", "why": why, "version": __version__})
        self._drop(self)

    def send(self, frame: Frame) -> None:
        """Tell it something; a broken line shows when it is next listened to."""
        with contextlib.suppress(WireBroken):
            self.wire.send(frame)

    def kill(self) -> None:
        """End it at once, and hang up."""
        self.send({"is": "kill"})
        self._drop(self)


class Exchange:
    """All lines of one engine. Used in the loop's thread only."""

    def __init__(self, loop: Loop, desk: Desk, *, bind: str, advertise: str, port: int, token: str) -> None:
        found = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=1024)
        self._listener.setblocking(False)
        self._loop = loop
        self._desk = desk
        self._callers: set[Caller] = set()
        self._deaf = False
        self.address = Address(host=advertise, port=self._listener.getsockname()[1], token=token)
        loop.watch(self._listener, selectors.EVENT_READ, self._accept)

    def beat(self) -> None:
        """Tell every welcomed caller that we are there, and hang up on strangers that said nothing."""
        now = time.monotonic()
        if self._deaf:
            self._deaf = False
            self._loop.watch(self._listener, selectors.EVENT_READ, self._accept)
        for caller in list(self._callers):
            if caller.welcomed:
                if caller.wire.unsent < _MOST_UNSENT:
                    caller.send({"is": "beat"})
                self._watch(caller)
            elif now - caller.called > _HELLO_SECONDS:
                self._drop(caller)

    def close(self) -> None:
        """Hang up on everybody and listen no more."""
        for caller in list(self._callers):
            self._drop(caller)
        self._loop.forget(self._listener)
        self._listener.close()

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                # It would be ready again at once, and we none the richer: look again at the next beat.
                logger.warning("no line can be answered for now: %s", error)
                self._loop.forget(self._listener)
                self._deaf = True
            return
        strangers = [caller for caller in self._callers if not caller.welcomed]
        if len(strangers) >= _MOST_STRANGERS:
            # The one that has said nothing for longest: a task says hello at once.
            self._drop(min(strangers, key=lambda caller: caller.called))
        caller = Caller(Wire(connection, most_bytes=_HELLO_BYTES), self._drop)
        self._callers.add(caller)
        self._watch(caller)

    def _watch(self, caller: Caller) -> None:
        if caller in self._callers:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.wire.unsent else 0)
            self._loop.watch(caller.wire, events, lambda ready: self._listen(caller, ready))

    def hear_out(self, caller: Caller) -> None:
        """Take all that has arrived from a caller, before it is hung up on."""
        while caller in self._callers and self._listen(caller, selectors.EVENT_READ):
            pass

    def _listen(self, caller: Caller, ready: int) -> bool:
        """Send what waits and hear what has come; return whether there may be more."""
        try:
            caller.wire.flush()
            frames = caller.wire.receive() if ready & selectors.EVENT_READ else []
        except WireBroken as error:
            logger.debug("line broken", extra={"why": str(error)})
            self._drop(caller)
            return False
        for frame in frames:
            if caller not in self._callers:
                return False
            if caller.introduction is None:
                self._introduce(caller, frame)
            elif caller.welcomed:
                self._hear(caller, caller.introduction, frame)
        self._watch(caller)
        return caller.wire.heard_something

    def _hear(self, caller: Caller, introduction: Introduction, frame: Frame) -> None:
        try:
            self._desk.on_frame(caller, introduction, frame)
        except _MALFORMED:
            logger.warning("shard %d said what cannot be understood, and was hung up on", introduction.shard)
            self._drop(caller)

    def _introduce(self, caller: Caller, frame: Frame) -> None:
        token = frame.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(
            token.encode(errors="surrogatepass"), self.address.token.encode()
        ):
            logger.warning("a caller without our token was hung up on")
            self._drop(caller)
        elif frame.get("version") != __version__:
            logger.warning("a task of version %s was refused", shorten(frame.get("version")))
            caller.refuse("version")
        else:
            try:
                caller.introduction = introduction(frame)
            except _MALFORMED:
                caller.refuse("its hello cannot be understood")
            else:
                self._desk.on_hello(caller, caller.introduction)

    def _drop(self, caller: Caller) -> None:
        if caller in self._callers:
            self._callers.discard(caller)
            self._loop.forget(caller.wire)
            caller.wire.close()
            if caller.welcomed and caller.introduction is not None:
                self._desk.on_hang_up(caller, caller.introduction)


def introduction(frame: Frame) -> Introduction:
    """Read a hello. Raises where something is missing or not what it should be."""
    parent = frame["parent"]
    return Introduction(
        shard=int(frame["shard"]),
        attempt=int(frame["attempt"]),
        task=int(frame["task"]),
        host=str(frame["host"]),
        process=Process(pid=int(frame["pid"]), born=int(frame["born"])),
        parent=Process(pid=int(parent[0]), born=int(parent[1])) if parent else None,
    )
