"""Probes of servers: each runs in its own thread, and each failure is counted and reported."""

import threading

from tests.processes import eventually
from thresher.db.problem import DatabaseLost
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.probing import Probing
from thresher.service.servers.reach import Reach

SOON_SECONDS = 60.0


def test_failures_are_counted_until_a_server_is_reached() -> None:
    left: list[BaseException | None] = [DatabaseLost("no"), ZeroDivisionError("a bug"), None]

    def database() -> None:
        if (error := left.pop(0)) is not None:
            raise error

    reach, process_counts = Reach(["database"]), ProcessCounts()
    probes = Probing({"database": database}, reach, process_counts, lost_seconds=0.001)
    probes.start()
    eventually(lambda: reach.health()["database"].up, SOON_SECONDS)
    probes.close()
    # A server that was just reached is not probed.
    assert left == []
    assert process_counts.driver() == {"errors.database_lost": 1, "errors.unexpected": 1}


def test_a_probe_that_hangs_keeps_no_other_and_no_end() -> None:
    answer = threading.Event()

    def database() -> None:
        answer.wait(SOON_SECONDS)

    reach = Reach(["database", "broker"])
    probes = Probing({"database": database, "broker": lambda: None}, reach, ProcessCounts(), lost_seconds=0.001)
    probes.start()
    eventually(lambda: reach.health()["broker"].up, SOON_SECONDS)
    assert not reach.health()["database"].up
    probes.close(0.001)
    answer.set()
