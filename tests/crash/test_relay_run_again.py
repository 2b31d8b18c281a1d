"""A task that Spark itself retries within the same attempt, as on a cluster that loses a node."""

import os
import signal
from pathlib import Path

from tests.faults.zombie import Zombie
from tests.processes import eventually
from tests.relay.relay_program import relay_of
from tests.relay.relaying import RELAYED_SECONDS, Place
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.testing.history import IDENTITY_HEADER
from thresher.testing.reading import read_topics

ROWS, KEYS = 400, 20


def test_at_least_once_a_killed_tasks_marked_rows_go_first(
    stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path
) -> None:
    at = Place(stack, dsn, topic_prefix)
    messages = [
        Message(topic=at.topic, key=f"k{number % KEYS}", headers={IDENTITY_HEADER: str(number)})
        for number in range(ROWS)
    ]
    at.stash(*messages[: ROWS // 2])
    # Spark runs a failing task up to four times.
    program = relay_of(at, delivery=Delivery.AT_LEAST_ONCE, master="local[4,4]")
    with Zombie(program, tmp_path / "zombie", victim="worker", points={0: CrashPoint.FLUSHED}) as relay:
        killed = relay.arrive()[0]
        assert killed["rows"]
        # A task that took only unmarked rows would send these first.
        at.stash(*messages[ROWS // 2 :])
        os.kill(killed["pid"], signal.SIGKILL)
        eventually(lambda: at.pending() == 0, RELAYED_SECONDS, relay.said)
        relay.process.send_signal(signal.SIGTERM)
        assert relay.process.wait(RELAYED_SECONDS) == 0, relay.said()
        assert "shard 0: attempt 1, last error: the executor was lost, and Spark started the task again" in relay.said()
    seen: dict[object, list[int]] = {}
    for each in read_topics(stack.kafka.bootstrap, [at.topic], uncommitted=True):
        seen.setdefault(each.key, []).append(int(each.identity))
    assert len({number for numbers in seen.values() for number in numbers}) == ROWS
    # A row may come twice, but never after a later row of its key.
    assert all(numbers == sorted(numbers) for numbers in seen.values()), seen
