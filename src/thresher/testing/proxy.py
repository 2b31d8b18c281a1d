"""A proxy between Kafka clients and one broker. It acts on single requests and answers, chosen by their API key.

It reads only Kafka's framing. Frames of one direction of a connection never overtake each other: after a frame that is
held or delayed, the rest of that direction waits. Requests without an answer (`acks=0`) work; TLS and SASL's unframed
tokens do not.

A client connects to the address that the broker advertises. So the stack gets a listener that advertises the proxy's
port, and the proxy connects to that listener's own port. The main listener stays the direct way, for the test itself.
A cluster needs one proxy and one port for each node:

    port = ports.free_port()
    options = KafkaOptions(listeners=(Listener(name="PROXIED", advertised_ports=(port,)),))
    with Stack(kafka=options) as stack, KafkaProxy(stack.kafka.bootstrap_of("PROXIED"), port=port) as proxy:
        producer = Producer({"bootstrap.servers": proxy.address, "transactional.id": "t"})
        rule = proxy.on_answer(Api.END_TXN, Hold(), times=1)
        ...                # a commit begins in another thread
        rule.wait()        # the broker has committed, but the client has no answer
        rule.release()     # the client gets it; after release(Cut()) it never does
"""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from thresher.testing.proxy_traffic import (
    Action,
    Api,
    Connection,
    Cut,
    Delay,
    Drop,
    Frame,
    Hold,
    Pass,
    ProxyProblem,
    Replace,
    Rule,
    Traffic,
    Verdict,
)

__all__ = [
    "Action",
    "Api",
    "Cut",
    "Delay",
    "Drop",
    "Frame",
    "Hold",
    "KafkaProxy",
    "Pass",
    "ProxyProblem",
    "Replace",
    "Rule",
    "Verdict",
]

_HOST = "127.0.0.1"
# Calls take milliseconds. This time-out means that an action blocks the proxy's thread.
_CALL_SECONDS = 60.0
_T = TypeVar("_T")


class KafkaProxy:
    """The proxy of one broker. It listens on loopback while its context is entered, in a thread of its own.

    The first rule that has a verdict for a frame decides, in the order in which rules were made. Without a verdict, the
    frame passes. Rules may be made at any time, also before the start. Every method has taken effect when it returns.
    An action may call any method except `close` and `Rule.wait`. An error of an action cuts the connection, and is
    raised again when the context is left.
    """

    def __init__(self, upstream: str, *, port: int = 0) -> None:
        host, _, upstream_port = upstream.rpartition(":")
        self._traffic = Traffic((host, int(upstream_port)))
        self.port = port
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = asyncio.Event()

    @property
    def address(self) -> str:
        """The `bootstrap.servers` for clients behind the proxy; known once it listens."""
        return f"{_HOST}:{self.port}"

    @property
    def requests(self) -> Counter[int]:
        """How many requests came from clients so far, by API key, including those that did not pass."""
        return self._do(self._traffic.requests.copy)

    @property
    def answers(self) -> Counter[int]:
        """How many answers came from the broker so far, by API key, including those that did not pass."""
        return self._do(self._traffic.answers.copy)

    @property
    def connections(self) -> int:
        """How many connections clients made so far."""
        return self._accepted

    def on_request(self, api: int | None, action: Action, *, times: int | None = None) -> Rule:
        """Add a rule for requests of an API, or of any API; with `times`, for this number of matches only."""
        return self._add(Rule(self._do, answers=False, api=api, action=action, times=times))

    def on_answer(self, api: int | None, action: Action, *, times: int | None = None) -> Rule:
        """Add a rule for answers of an API, or of any API; with `times`, for this number of matches only."""
        return self._add(Rule(self._do, answers=True, api=api, action=action, times=times))

    def pause(self) -> None:
        """Let nothing through, in either direction, and keep all connections. Frames wait for `resume`."""
        self._do(self._traffic.flowing.clear)

    def resume(self) -> None:
        """Let traffic through again."""
        self._do(self._traffic.flowing.set)

    def cut_all(self) -> None:
        """Close every connection. Frames that are held on them are lost. New connections are accepted."""
        self._do(self._cut_connections)

    def start(self) -> None:
        """Listen, and return when clients can connect. Raises `OSError` if the port is taken. Call it once only."""
        listener = socket.create_server((_HOST, self.port))
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop, listener), name="kafka-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection, and end the thread; then raise the thread's first error, if any."""
        thread = self._thread
        self._do(self._ending.set)
        if thread is not None:
            thread.join(_CALL_SECONDS)
            if thread.is_alive():
                raise ProxyProblem(f"the proxy did not end within {_CALL_SECONDS:.0f} s: does an action block?")
            self._thread = None
        if self._traffic.failures:
            raise self._traffic.failures[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, rule: Rule) -> Rule:
        self._do(lambda: self._traffic.rules.append(rule))
        return rule

    def _cut_connections(self) -> None:
        for connection in self._connections:
            connection.cut()

    def _do(self, act: Callable[[], _T]) -> _T:
        """Call a function on the proxy's thread: only this thread may change the state while the proxy runs."""
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
        # `start_server` is not used: if it is closed while it accepts a connection, that connection stays open.
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._accept, listener, loop)
        await self._ending.wait()
        loop.remove_reader(listener)
        listener.close()
        while len(asyncio.all_tasks()) > 1:
            self._cut_connections()
            await asyncio.sleep(0)

    def _accept(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # the client has disconnected already
            return
        self._accepted += 1
        connection = Connection(number=self._accepted)
        self._connections.add(connection)
        connection.task = loop.create_task(self._traffic.carry(connection, client))
        connection.task.add_done_callback(lambda _: self._connections.discard(connection))
