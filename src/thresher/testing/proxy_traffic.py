"""The traffic of the proxy: frames, the rules that decide about them, and the two directions of a connection.

Only the proxy's own thread uses these objects while the proxy runs.
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
# The broker's default limit of a request. A larger size is a sign that this is not Kafka's framing.
_LARGEST_FRAME = 100 * 1024 * 1024
_READ_AHEAD = 1024 * 1024
_UNKNOWN = -1


class Api(enum.IntEnum):
    """The API keys that tests use by name; others are given as numbers."""

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
    """One request or answer. An answer has the API and version of its request, or -1 if that is not known.

    `connection` is the number of the client's connection, from 1. `raw` is the whole frame, including its size field.
    """

    is_answer: bool
    api: int
    version: int
    correlation: int
    connection: int
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Forward the frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Discard the frame, and keep the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Discard the frame, and close both sides of its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Forward the frame after some seconds; `hang_up` as with `Hold`."""

    seconds: float
    hang_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keep the frame until its rule is released.

    A held request stays even if the client disconnects: after the release it still reaches the broker. A held answer
    does not stay. With `hang_up`, the client's side is closed at once, so that the client retries. Rules still see the
    answers to its earlier requests.
    """

    hang_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Forward other bytes instead of the frame. They include the size field and the frame's correlation id."""

    raw: bytes


Verdict = Pass | Drop | Cut | Delay | Hold | Replace
# A function is called on the proxy's own thread, and must not block. If it returns None, the next rules decide.
Action = Verdict | Callable[[Frame], Verdict | None]


class ProxyProblem(ThresherError):  # noqa: N818
    """The proxy failed; the connection was cut."""


class Rule:
    """A rule of the proxy. It counts the frames that it decided, and can release those that it holds."""

    def __init__(
        self,
        do: Callable[[Callable[[], None]], None],
        *,
        answers: bool,
        api: int | None,
        action: Action,
        times: int | None,
    ) -> None:
        """`do` calls a function on the proxy's thread."""
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
        """How many frames the rule has decided so far."""
        return self._matched

    def wait(self, count: int = 1, timeout_seconds: float = 60.0) -> None:
        """Return once the rule has decided `count` frames. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._matched >= count, timeout_seconds):
                raise TimeoutError(f"the rule saw {self._matched} of {count} frames in {timeout_seconds} s")

    def release(self, verdict: Pass | Drop | Cut | Delay | None = None) -> None:
        """End the rule: it decides no more frames. Frames that it holds pass, or get the given verdict."""

        def let_go() -> None:
            self._times = self._matched
            for held in self._held:
                if not held.done():
                    held.set_result(verdict or Pass())
            self._held.clear()

        self._do(let_go)

    def decide(self, frame: Frame) -> Verdict | None:
        """Return the verdict for a frame; None if the rule does not apply."""
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
    """A client's connection, and the corresponding one to the broker."""

    number: int
    # First the client's side, then the broker's.
    ends: list[asyncio.StreamWriter] = field(default_factory=list)
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    # The proxy has closed the client's side, while a request of it must still reach the broker.
    left: bool = False

    def cut(self) -> None:
        """Close both sides, as far as they are open."""
        for end in self.ends:
            end.transport.abort()
        if self.task is not None and self.ends:
            self.task.cancel()

    def hang_up(self) -> None:
        """Close the client's side."""
        self.left = True
        self.ends[0].transport.abort()

    def frame(self, raw: bytes, *, is_answer: bool) -> Frame:
        """Return the frame with its header decoded."""
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
    """Forwards the connections to one broker, frame by frame, as the rules decide."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.rules: list[Rule] = []
        self.requests: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.failures: list[Exception] = []
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def carry(self, connection: Connection, accepted: socket.socket) -> None:
        """Forward a connection until its end. The direction that ends first ends both."""
        client, to_client = await asyncio.open_connection(sock=accepted, limit=_READ_AHEAD)
        connection.ends.append(to_client)
        pumps: Iterable[asyncio.Task[None]] = ()
        try:
            # If the broker is down, the connection attempt fails, and the client's connection is closed.
            broker, to_broker = await asyncio.open_connection(*self._upstream, limit=_READ_AHEAD)
            connection.ends.append(to_broker)
            for end in connection.ends:
                # `drain` waits until the kernel has the frame: so a later cut cannot take back what was forwarded.
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
        """Forward one direction, frame by frame, until a side closes or a rule cuts the connection."""
        try:
            # A side that closes or resets its connection is no failure of the proxy.
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while (raw := await self._pass_rules(connection, source, is_answer=is_answer)) is not None:
                    if is_answer and connection.left:
                        continue
                    sink.write(raw)
                    await sink.drain()
                    while connection.left and connection.asked:
                        await asyncio.sleep(_LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - kept for `close`, which raises it in the test's thread
            self.failures.append(error)

    async def _pass_rules(
        self, connection: Connection, source: asyncio.StreamReader, *, is_answer: bool
    ) -> bytes | None:
        """Return the next frame's bytes once it may be forwarded; empty bytes to drop it, None to cut."""
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
        if isinstance(verdict, Replace):
            return verdict.raw
        return b"" if isinstance(verdict, Drop) else raw

    async def _judge(self, frame: Frame, connection: Connection) -> Verdict:
        """Return the final verdict for a frame: for a held frame, that of the release."""
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
        raise ProxyProblem(f"a frame of {size} bytes is not possible: a side uses TLS, or not Kafka's protocol")
    return head + await source.readexactly(size)
