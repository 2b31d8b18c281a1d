"""A proxy in front of a database: while it is muted, queries pass and answers are held back.

Sessions are told apart by their application name. A session that is being opened is answered until it is ready: the
database accepts connections and then never answers, which no connect time-out ends.
"""

import contextlib
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from psycopg import conninfo

_NAME, _READY = b"application_name\0", b"Z\0\0\0\5I"


@dataclass
class _Session:
    client: socket.socket
    server: socket.socket
    application: str = ""
    ready: bool = False
    # A query is not answered yet.
    unanswered: bool = False


class MuteProxy:
    """Listens on a port of its own while its context is entered."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._state = threading.Condition()
        self._muted: str | None = None
        self._sessions: list[_Session] = []
        self._listening = socket.create_server(("127.0.0.1", 0))

    @property
    def dsn(self) -> str:
        """The connection string that leads through this proxy."""
        return conninfo.make_conninfo(self._dsn, host="127.0.0.1", port=self._listening.getsockname()[1])

    def mute(self, ending: str = "") -> None:
        """Hold back the answers to sessions whose application name has this ending."""
        with self._state:
            self._muted = ending

    def unmute(self) -> None:
        """Let all answers pass, those that were held back first."""
        with self._state:
            self._muted = None
            self._state.notify_all()

    def keeps_waiting(self, ending: str = "") -> bool:
        """Whether a session whose application name has this ending waits for an answer."""
        with self._state:
            return any(each.unanswered and each.application.endswith(ending) for each in self._sessions)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A shutdown wakes the thread that waits in `accept`; closing the socket does not.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.unmute()
        for each in self._sessions:
            for end in (each.client, each.server):
                end.close()

    def _accept(self) -> None:
        to = conninfo.conninfo_to_dict(self._dsn)
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                session = _Session(client, socket.create_connection((str(to["host"]), int(str(to["port"])))))
                self._sessions.append(session)
                for pass_on in (self._ask, self._answer):
                    threading.Thread(target=pass_on, args=[session], daemon=True).start()

    def _ask(self, session: _Session) -> None:
        with contextlib.suppress(OSError):
            while data := session.client.recv(1 << 16):
                with self._state:
                    if _NAME in data:
                        session.application = data.partition(_NAME)[2].partition(b"\0")[0].decode()
                    session.unanswered = session.unanswered or self._is_mute(session)
                session.server.sendall(data)
        with contextlib.suppress(OSError):
            session.server.shutdown(socket.SHUT_WR)

    def _answer(self, session: _Session) -> None:
        with contextlib.suppress(OSError):
            while data := session.server.recv(1 << 16):
                with self._state:
                    # The query may have passed before the proxy was muted.
                    session.unanswered = session.unanswered or self._is_mute(session)
                    self._state.wait_for(lambda: not self._is_mute(session))
                    session.unanswered = False
                    session.ready = session.ready or _READY in data
                session.client.sendall(data)
        with contextlib.suppress(OSError):
            session.client.shutdown(socket.SHUT_WR)

    def _is_mute(self, session: _Session) -> bool:
        return session.ready and self._muted is not None and session.application.endswith(self._muted)
