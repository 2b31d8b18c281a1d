"""A proxy between Kafka clients and one broker that acts on single requests and answers, chosen by their API key.

It reads Kafka's framing and nothing more. Whatever it does, frames of one direction of one connection never overtake
each other: behind a frame that is held or delayed the rest of that direction waits. A request that never has an answer
(`acks=0`) needs no care; TLS and SASL's unframed tokens are not understood.

Clients leave the address they were given for the one that the broker advertises. For them to stay behind the proxy, the
stack gets a listener that advertises the proxy's port, and the proxy leads to where that listener really is; the main
listener remains the direct way, for the test's own eyes. A cluster has one proxy and one port for each node:

    port = ports.free_port()
    options = KafkaOptions(listeners=(Listener(name="PROXIED", advertised_ports=(port,)),))
    with Stack(kafka=options) as stack, KafkaProxy(stack.kafka.bootstrap_of("PROXIED"), port=port) as proxy:
        producer = Producer({"bootstrap.servers": proxy.address, "transactional.id": "t"})
        rule = proxy.on_answer(Api.END_TXN, Hold(), times=1)
        ...                # a commit begins in another thread
        rule.wait()        # the broker has committed, the client does not know
        rule.release()     # or release(Cut()), and it never will
"""

import asyncio
import contextlib
import enum
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from thresher.core.errors import ThresherError

_HOST = "127.0.0.1"
# Seen: milliseconds. Longer means that an action blocks the proxy's thread.
_CALL_SECONDS = 60.0
_LOOK_SECONDS = 0.01
# A broker takes no larger request by default; what claims to be larger is not Kafka's framing.
_LARGEST_FRAME = 100 * 1024 * 1024
_READ_AHEAD = 1024 * 1024
_UNKNOWN = -1
_T = TypeVar("_T")


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

    def __init__(self, proxy: "KafkaProxy", *, answers: bool, api: int | None, action: Action, times: int | None):
        self._proxy = proxy
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

        self._proxy._do(let_go)

    def _decide(self, frame: Frame) -> Verdict | None:
        """Return the verdict on a frame, or None if the rule is not for it."""
        if frame.is_answer is not self._answers or self._api not in {None, frame.api} or self._matched == self._times:
            return None
        verdict = self._action(frame) if callable(self._action) else self._action
        if verdict is not None:
            with self._changed:
                self._matched += 1
                self._changed.notify_all()
        return verdict

    def _hold(self) -> asyncio.Future[Verdict]:
        held: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._held.append(held)
        return held


@dataclass(slots=True, kw_only=True, eq=False)
class _Connection:
    """A client's connection and the one to the broker that belongs to it."""

    number: int
    ends: list[asyncio.StreamWriter]
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    # We hung up on the client, and something of it is still to be brought to the broker.
    left: bool = False

    def cut(self) -> None:
        for end in self.ends:
            end.transport.abort()
        if self.task is not None:
            self.task.cancel()

    def hang_up(self) -> None:
        self.left = True
        self.ends[0].transport.abort()

    def frame(self, raw: bytes, *, is_answer: bool) -> Frame:
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


class KafkaProxy:
    """The proxy of one broker, listening on loopback while its context is entered, on one thread of its own.

    Each frame gets the verdict of the first rule, in the order in which they were made, that has one for it; without
    any it passes. Rules may be made at any time, before the start too. Every method has taken effect when it returns
    and may be called from an action, but for `close` and `Rule.wait`. What an action raises cuts the connection;
    leaving the context raises it again.
    """

    def __init__(self, upstream: str, *, port: int = 0) -> None:
        host, _, upstream_port = upstream.rpartition(":")
        self._upstream = (host, int(upstream_port))
        self.port = port
        self._rules: list[Rule] = []
        self._requests: Counter[int] = Counter()
        self._answers: Counter[int] = Counter()
        self._connections: set[_Connection] = set()
        self._accepted = 0
        self._failures: list[Exception] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._ending = asyncio.Event()

    @property
    def address(self) -> str:
        """The `bootstrap.servers` of clients that are to go through the proxy; known once it listens."""
        return f"{_HOST}:{self.port}"

    @property
    def requests(self) -> Counter[int]:
        """How many requests came from clients so far by API key, whatever became of them."""
        return self._do(self._requests.copy)

    @property
    def answers(self) -> Counter[int]:
        """How many answers came from the broker so far by API key, whatever became of them."""
        return self._do(self._answers.copy)

    @property
    def connections(self) -> int:
        """How many connections clients made so far."""
        return self._accepted

    def on_request(self, api: int | None, action: Action, *, times: int | None = None) -> Rule:
        """Make a rule for requests of an API, or of any; with `times`, for so many matches only."""
        return self._add(Rule(self, answers=False, api=api, action=action, times=times))

    def on_answer(self, api: int | None, action: Action, *, times: int | None = None) -> Rule:
        """Make a rule for the answers to requests of an API, or of any; with `times`, for so many matches only."""
        return self._add(Rule(self, answers=True, api=api, action=action, times=times))

    def pause(self) -> None:
        """Let nothing through, in either direction, and keep all connections; what comes is seen after `resume`."""
        self._do(self._flowing.clear)

    def resume(self) -> None:
        """Let traffic through again."""
        self._do(self._flowing.set)

    def cut_all(self) -> None:
        """Close every connection, and with it lose what is held on it. New ones are accepted."""
        self._do(self._cut_connections)

    def start(self) -> None:
        """Listen, and return when clients can connect. Raises `OSError` if the port is taken. Once only."""
        listener = socket.create_server((_HOST, self.port))
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop, listener), name="kafka-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection and end the thread; then raise what went wrong on it."""
        thread = self._thread
        self._do(self._ending.set)
        if thread is not None:
            thread.join(_CALL_SECONDS)
            if thread.is_alive():
                raise ProxyProblem(f"the proxy did not end in {_CALL_SECONDS:.0f} s: does an action block?")
            self._thread = None
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, rule: Rule) -> Rule:
        self._do(lambda: self._rules.append(rule))
        return rule

    def _cut_connections(self) -> None:
        for connection in self._connections:
            connection.cut()

    def _do(self, act: Callable[[], _T]) -> _T:
        """Do something on the proxy's thread, which alone touches its state while it runs."""
        if self._loop is None or self._thread in {None, threading.current_thread()}:
            return act()

        async def done() -> _T:
            return act()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(_CALL_SECONDS)

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        try:
            loop.run_until_complete(self._serve(listener))
        finally:
            loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._accept, sock=listener, limit=_READ_AHEAD)
        await self._ending.wait()
        server.close()
        # A connection that is just being accepted is one of these tasks too, and only then among the connections.
        while len(asyncio.all_tasks()) > 1:
            self._cut_connections()
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        connection = _Connection(number=self._accepted, ends=[writer])
        self._connections.add(connection)
        connection.task = asyncio.get_running_loop().create_task(self._relay(connection, reader, writer))
        connection.task.add_done_callback(lambda _: self._connections.discard(connection))

    async def _relay(
        self, connection: _Connection, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        """Carry a connection from its begin to its end: whichever direction ends first ends both."""
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
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
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
            self._failures.append(error)

    async def _pass_rules(
        self, connection: _Connection, source: asyncio.StreamReader, *, is_answer: bool
    ) -> bytes | None:
        """Return the next frame's bytes, when it may go on; nothing for one that is dropped; None to cut."""
        raw = await _read(source, shortest=4 if is_answer else 8)
        await self._flowing.wait()
        frame = connection.frame(raw, is_answer=is_answer)
        (self._answers if is_answer else self._requests)[frame.api] += 1
        verdict = await self._judge(frame, connection)
        if isinstance(verdict, Cut):
            return None
        if isinstance(verdict, Delay):
            await asyncio.sleep(verdict.seconds)
        await self._flowing.wait()
        return b"" if isinstance(verdict, Drop) else raw

    async def _judge(self, frame: Frame, connection: _Connection) -> Verdict:
        """Return what finally becomes of a frame: where it is held, what its release says."""
        for rule in tuple(self._rules):
            match rule._decide(frame):
                case None:
                    continue
                case verdict:
                    if isinstance(verdict, Hold | Delay) and verdict.hang_up:
                        connection.hang_up()
                    return await rule._hold() if isinstance(verdict, Hold) else verdict
        return Pass()


async def _read(source: asyncio.StreamReader, *, shortest: int) -> bytes:
    head = await source.readexactly(4)
    size = int.from_bytes(head, signed=True)
    if not shortest <= size <= _LARGEST_FRAME:
        raise ProxyProblem(f"a frame of {size} bytes: the client or the broker speaks TLS, or not Kafka's protocol")
    return head + await source.readexactly(size)
