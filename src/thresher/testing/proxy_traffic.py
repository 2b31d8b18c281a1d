"""What goes through the proxy: frames, the rules that decide on them, and the two directions of a connection.

Only the proxy's own thread touches any of it while the proxy runs.
"""

import asyncio
import contextlib
import enum
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from thresher.core.errors import ThresherError

_LOOK_SECONDS = 0.01
# A broker takes no larger request by default; what claims to be larger is not Kafka's framing.
_LARGEST_FRAME = 100 * 1024 * 1024
_READ_AHEAD = 1024 * 1024
_UNKNOWN = -1


class Api(enum.IntEnum):
    """The API keys that tests name; any other is given as its number."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One request or answer. An answer has the API and version of its request, or -1 if that was never seen.

    `connection` counts the client's connections from 1. `raw` is all of it, the size in front included.
    """

    is_answer: bool
    api: int
    version: int
    correlation: int
    connection: int
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Let the frame go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Swallow the frame and keep the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Swallow the frame and close both sides of its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Let the frame go on after a while; `hang_up` as with `Hold`."""

    seconds: float
    hang_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keep the frame until its rule is released.

    A held request outlives a client that hangs up: released, it still reaches the broker. A held answer does not. With
    `hang_up` the client's side of the connection is closed at once: it knows that it has to ask again. Answers to what
    it asked before are still seen by rules.
    """

    hang_up: bool = False


Verdict = Pass | Drop | Cut | Delay | Hold
# A function is asked on the proxy's own thread and must not block; None leaves the frame to the rules behind.
Action = Verdict | Callable[[Frame], Verdict | None]


class ProxyProblem(ThresherError):  # noqa: N818
    """The proxy could not do its work; the connection concerned was cut."""


class Rule:
    """A rule in force: how many frames it decided, and the way to let go of those that it holds."""

    def __init__(
        self,
        do: Callable[[Callable[[], None]], None],
        *,
        answers: bool,
        api: int | None,
        action: Action,
        times: int | None,
    ) -> None:
        """`do` does something on the proxy's thread."""
        self._do = do
        self._answers = answers
        self._api = api
        self._action = action
        self._times = times
        self._matched = 0
        self._changed = threading.Condition()
        self._held: list[asyncio.Future[Verdict]] = []

    @property
    def matched(self) -> int:
        """How many frames it decided so far."""
        return self._matched

    def wait(self, count: int = 1, timeout_seconds: float = 60.0) -> None:
        """Return once it decided so many frames; those to be held are held then. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._matched >= count, timeout_seconds):
                raise TimeoutError(f"the rule saw {self._matched} of {count} frames in {timeout_seconds} s")

    def release(self, verdict: Pass | Drop | Cut | Delay | None = None) -> None:
        """End the rule: it decides no further frames, and those it holds go on, or are treated as told."""

        def let_go() -> None:
            self._times = self._matched
            for held in self._held:
                if not held.done():
                    held.set_result(verdict or Pass())
            self._held.clear()

        self._do(let_go)

    def decide(self, frame: Frame) -> Verdict | None:
        """Return the verdict on a frame, or None if the rule is not for it."""
        if frame.is_answer is not self._answers or self._api not in {None, frame.api} or self._matched == self._times:
            return None
        verdict = self._action(frame) if callable(self._action) else self._action
        if verdict is not None:
            with self._changed:
                self._matched += 1
                self._changed.notify_all()
        return verdict

    def hold(self) -> asyncio.Future[Verdict]:
        """Keep a frame until the rule is released."""
        held: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._held.append(held)
        return held


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """A client's connection and the one to the broker that belongs to it."""

    number: int
    # The client's, and then the broker's.
    ends: list[asyncio.StreamWriter] = field(default_factory=list)
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    # We hung up on the client, and something of it is still to be brought to the broker.
    left: bool = False

    def cut(self) -> None:
        """Close both sides. One that is being opened is not there yet."""
        for end in self.ends:
            end.transport.abort()
        if self.task is not None and self.ends:
            self.task.cancel()

    def hang_up(self) -> None:
        """Close the client's side."""
        self.left = True
        self.ends[0].transport.abort()

    def frame(self, raw: bytes, *, is_answer: bool) -> Frame:
        """Return what the bytes say of themselves."""
        if is_answer:
            correlation = int.from_bytes(raw[4:8], signed=True)
            api, version = self.asked.pop(correlation, (_UNKNOWN, _UNKNOWN))
        else:
            api, version = int.from_bytes(raw[4:6], signed=True), int.from_bytes(raw[6:8], signed=True)
            correlation = int.from_bytes(raw[8:12], signed=True)
            self.asked[correlation] = (api, version)
        return Frame(
            is_answer=is_answer,
            api=api,
            version=version,
            correlation=correlation,
            connection=self.number,
            raw=raw,
        )


class Traffic:
    """Carries connections to one broker, frame by frame, by the rules."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.rules: list[Rule] = []
        self.requests: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.failures: list[Exception] = []
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def carry(self, connection: Connection, accepted: socket.socket) -> None:
        """Carry a connection from its begin to its end: whichever direction ends first ends both."""
        client, to_client = await asyncio.open_connection(sock=accepted, limit=_READ_AHEAD)
        connection.ends.append(to_client)
        pumps: Iterable[asyncio.Task[None]] = ()
        try:
            # A broker that is down refuses its clients: so does the proxy, as well as it can.
            broker, to_broker = await asyncio.open_connection(*self._upstream, limit=_READ_AHEAD)
            connection.ends.append(to_broker)
            for end in connection.ends:
                # What was let go is with the kernel before the next frame is read: no later end of this takes it back.
                end.transport.set_write_buffer_limits(high=0)
            pumps = [
                asyncio.create_task(self._pump(connection, client, to_broker, is_answer=False)),
                asyncio.create_task(self._pump(connection, broker, to_client, is_answer=True)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for end in connection.ends:
                end.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, connection: Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        """Carry one direction, frame by frame, until an end closes or a rule cuts."""
        try:
            # An end that closes or resets is the client's or the broker's business.
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while (raw := await self._pass_rules(connection, source, is_answer=is_answer)) is not None:
                    if is_answer and connection.left:
                        continue
                    sink.write(raw)
                    await sink.drain()
                    while connection.left and connection.asked:
                        await asyncio.sleep(_LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - kept for the test's own thread, which raises it
            self.failures.append(error)

    async def _pass_rules(
        self, connection: Connection, source: asyncio.StreamReader, *, is_answer: bool
    ) -> bytes | None:
        """Return the next frame's bytes, when it may go on; nothing for one that is dropped; None to cut."""
        raw = await _read(source, shortest=4 if is_answer else 8)
        await self.flowing.wait()
        frame = connection.frame(raw, is_answer=is_answer)
        (self.answers if is_answer else self.requests)[frame.api] += 1
        verdict = await self._judge(frame, connection)
        if isinstance(verdict, Cut):
            return None
        if isinstance(verdict, Delay):
            await asyncio.sleep(verdict.seconds)
        await self.flowing.wait()
        return b"" if isinstance(verdict, Drop) else raw

    async def _judge(self, frame: Frame, connection: Connection) -> Verdict:
        """Return what finally becomes of a frame: where it is held, what its release says."""
        for rule in tuple(self.rules):
            match rule.decide(frame):
                case None:
                    continue
                case verdict:
                    if isinstance(verdict, Hold | Delay) and verdict.hang_up:
                        connection.hang_up()
                    return await rule.hold() if isinstance(verdict, Hold) else verdict
        return Pass()


async def _read(source: asyncio.StreamReader, *, shortest: int) -> bytes:
    head = await source.readexactly(4)
    size = int.from_bytes(head, signed=True)
    if not shortest <= size <= _LARGEST_FRAME:
        raise ProxyProblem(f"a frame of {size} bytes: the client or the broker speaks TLS, or not Kafka's protocol")
    return head + await source.readexactly(size)
