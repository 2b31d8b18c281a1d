"""An order to kill a part of a pipeline at a crash point, once. A hook in its workers carries it out.

The order is a file in the temporary directory of the run. So the workers of a program can read it, and those on the
run's own Spark too.
"""

import contextlib
import json
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.processes import is_java, parent

# How often the crash point is still to be passed, by order. A worker process may serve several tests.
_left: dict[str, int] = {}


class KillOrder:
    """The order of one test, and whether it was carried out."""

    def give(self, point: str, who: str, *, after: int = 1, driver: int = 0) -> None:
        """Order to kill `who` at the nth crash point with records: worker, jvm, driver, or nobody, who is paused."""
        self.withdraw()
        draft = _order().with_suffix(".draft")
        draft.write_text(
            json.dumps({"id": uuid.uuid4().hex, "point": point, "who": who, "after": after, "driver": driver})
        )
        draft.rename(_order())

    @property
    def is_done(self) -> bool:
        return _sign().exists()

    def withdraw(self) -> None:
        for path in (_order(), _sign()):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def kill_order() -> Iterator[KillOrder]:
    """Return an order to be given; it ends with the context."""
    order = KillOrder()
    try:
        yield order
    finally:
        order.withdraw()


def obey(point: str) -> None:
    """Called by a worker at each crash point with records in flight."""
    try:
        told = json.loads(_order().read_text())
    except FileNotFoundError:
        return
    if point != told["point"] or _sign().exists():
        return
    left = _left[told["id"]] = _left.get(told["id"], told["after"]) - 1
    if left:
        return
    _sign().touch()
    if told["who"] == "nobody":
        # The test sees the file, and has 3 s to stop this process here.
        time.sleep(3)
        return
    me = os.getpid()
    os.kill({"worker": me, "jvm": _java_of(me), "driver": told["driver"]}[told["who"]], signal.SIGKILL)
    # The worker does nothing more: its further work would not follow a crash of the victim.
    time.sleep(60)


def _java_of(pid: int) -> int:
    while not is_java(pid):
        pid = parent(pid)
    return pid


def _order() -> Path:
    return Path(tempfile.gettempdir()) / "kill-order"


def _sign() -> Path:
    return Path(tempfile.gettempdir()) / "kill-order-done"
