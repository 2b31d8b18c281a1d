"""What another user of the driver's machine tries on the ports, sockets and files of a running program.

The stranger is `nobody` where the tests may change their user. Elsewhere it is a process of ours: it proves the same of
the ports, and the modes of directories and files prove the rest.
"""

import contextlib
import encodings.idna  # noqa: F401 - for `connect`; the stranger cannot read our Python's files
import json
import os
import socket
import stat
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import psycopg

from tests.processes import command_line, descendants, listening, socket_inodes

NOBODY = 65534
# Per port, whatever it is.
CONNECTIONS, FLOOD_BYTES = 100, 16 << 20


def attack_program(pid: int, *, ports: int, secrets: Iterable[str], meanwhile: Callable[[], object]) -> None:
    """Check that another user gets nothing of this process and its children, by any port on which they listen.

    `ports` is their number: a further one has to be known here. `secrets` are in no answer, and on no command line but
    that of `pid` itself, which is the test's. `meanwhile` is called during the attack, to check that the program goes
    on.
    """
    pids = {pid, *descendants(pid)}
    found = listening(pids)
    assert len(found) == ports, found
    hidden = [each.encode() for each in secrets]
    for each in pids - {pid}:
        line = command_line(each)
        assert not any(secret in line for secret in hidden), each
        words = line.split(b"\0")
        for word, file in pairwise(words):
            # Java has read it, and its secrets need no file any more.
            assert word != b"--properties-file" or not Path(os.fsdecode(file)).exists(), file
    sockets = [path for path in unix_sockets(pids) if path.startswith("/")]
    assert len(sockets) >= 2, "the line, and the workers' daemon"
    with as_stranger(lambda: closed_doors(sockets, pids)) as opened:
        pass
    assert opened == {}
    with as_stranger(lambda: attack(found)) as answers:
        meanwhile()
    assert {int(question.partition(",")[0]) for question in answers} == set(found), "each was reached"
    for question, digits in answers.items():
        answer = bytes.fromhex(digits)
        assert not granted(answer), (question, answer[:200])
        assert not any(secret in answer for secret in hidden), question


def password_of(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["password"])


def unix_sockets(pids: set[int]) -> list[str]:
    inodes = socket_inodes(pids)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted({fields[7] for fields in lines if len(fields) > 7 and fields[6] in inodes})


@contextlib.contextmanager
def as_stranger(call: Callable[[], dict[str, str]]) -> Iterator[dict[str, str]]:
    """Run the call in a child process as another user, during the block; afterwards the dictionary has its answer."""
    answer: dict[str, str] = {}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            with os.fdopen(writer, "w") as output:
                output.write(json.dumps(call()))
            os._exit(0)
        except Exception:  # noqa: BLE001 - a child of a test must never become a second test
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        yield answer
    finally:
        with os.fdopen(reader) as output:
            content = output.read()
        _, status = os.waitpid(child, 0)
    assert status == 0
    answer.update(json.loads(content))


def closed_doors(sockets: list[str], pids: set[int]) -> dict[str, str]:
    """Return what another user can enter or read: sockets, their directories, environments and command lines."""
    found = {}
    for path in sockets:
        directory = Path(path).parent
        if os.geteuid() != NOBODY:
            if stat.S_IMODE(directory.stat().st_mode) != 0o700:
                found[path] = "its directory is open"
            continue
        with contextlib.suppress(PermissionError), socket.socket(socket.AF_UNIX) as door:
            door.connect(path)
            found[path] = "it lets strangers in"
        with contextlib.suppress(PermissionError):
            found[str(directory)] = str(list(directory.iterdir()))
    for pid in pids:
        with contextlib.suppress(OSError):
            if os.geteuid() == NOBODY:
                found[f"environment of {pid}"] = Path(f"/proc/{pid}/environ").read_text()[:100]
    return found


def attack(ports: list[int]) -> dict[str, str]:
    """Flood and question every port; return its answers to each question that it took, in hexadecimal digits."""
    held: list[socket.socket] = []

    def hold(port: int) -> None:
        # Spark's page takes connections slowly: then it has no more of them.
        with contextlib.suppress(OSError):
            held.extend(socket.create_connection(("127.0.0.1", port), timeout=2) for _ in range(CONNECTIONS))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(hold, ports))
        # Most of a frame of Spark's that never ends, and most of a line of py4j's.
        for port in ports:
            for beginning in (struct.pack(">q", 1 << 30), b"c"):
                pool.submit(flood, port, beginning)
        asked = {
            f"{port}, question {number}": pool.submit(ask, port, question)
            for port in ports
            for number, question in enumerate(QUESTIONS)
        }
        answers = {question: answer.hex() for question, each in asked.items() if (answer := each.result()) is not None}
    for each in held:
        each.close()
    return answers


def flood(port: int, beginning: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.sendall(beginning)
        for _ in range(FLOOD_BYTES >> 20):
            stranger.sendall(b"x" * (1 << 20))


def ask(port: int, question: bytes) -> bytes | None:
    """Return the answer, or None if the port took no question."""
    answer, taken = bytearray(), False
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.settimeout(1.0)
        stranger.sendall(question)
        taken = True
        while len(answer) < 1 << 20 and (chunk := stranger.recv(65536)):
            answer += chunk
    return bytes(answer) if taken else None


def message(kind: int, body: bytes) -> bytes:
    """Return a message of Spark's network protocol."""
    return struct.pack(">qb", 9 + len(body), kind) + body


def remote_call(body: bytes) -> bytes:
    return message(3, struct.pack(">qi", 7, len(body)) + body)


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def granted(answer: bytes) -> bool:
    """Whether Spark has answered a call with success, or with a piece of data."""
    return len(answer) > 8 and answer[8] in {1, 4, 6}


APPLICATION = f"local-{int(time.time() * 1000)}"
# The task, which holds the passwords, is the first broadcast.
OPEN_BLOCKS = b"\x00" + text(APPLICATION) + text("driver") + struct.pack(">i", 1) + text("broadcast_0_piece0")
QUESTIONS = (
    remote_call(OPEN_BLOCKS),
    remote_call(OPEN_BLOCKS) + message(0, struct.pack(">qi", 0, 0)),
    # A stream by name, as for files and jars.
    message(5, text("/files/../../etc/passwd")),
    # An object of Java, as a call and as a message without an answer.
    remote_call(bytes.fromhex("aced0005737200")),
    message(9, struct.pack(">i", 7) + bytes.fromhex("aced0005737200")),
    b"A\nwrong\ne\n",
    b"c\nj\ngetClass\ne\n",
    *(
        f"{request} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
        for request in ("GET /jobs/job/kill/?id=0", "POST /jobs/job/kill/?id=0", "GET /environment/")
    ),
    os.urandom(4096),
)
