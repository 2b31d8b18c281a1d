"""A signal that the kernel delivers to another thread still interrupts a main thread that waits.

`thresher run` and the engine are in `test_relay_cli` and `test_engine_signals`, queues in `test_queue_running`
and `test_queue_cli`.
"""

import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.processes import PYTHON_PATH, alive, descendants, environment, eventually, marked, signal_a_thread, state_of

# Only how long a failing test waits. Seen: 1 s until a program has ended, 9 s until a demo relays.
PATIENCE_SECONDS = 60.0
HARVEST = """
import faulthandler, signal

faulthandler.register(signal.SIGUSR1)  # shows where it hangs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes background jobs ignore it
from thresher.harvest import Harvest, Settings, TableName

harvest = Harvest(
    Settings(
        name="nobody",
        dsn="postgresql://nobody@127.0.0.1:1/nothing",
        outbox=TableName(table="outbox"),
        kafka={"bootstrap.servers": "127.0.0.1:1"},
    )
)
try:
    with harvest:
        print("waiting", flush=True)
        harvest.wait()
except KeyboardInterrupt:
    print(f"interrupted and {harvest.state}")
"""


def waits(process: "subprocess.Popen[bytes]") -> bool:
    return all(state_of(process.pid) == "S" for _ in range(5))


def test_a_harvest_whose_program_waits_is_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HARVEST], env=environment(PYTHONPATH=PYTHON_PATH), stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            eventually(lambda: waits(process), PATIENCE_SECONDS)
            signal_a_thread(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
            raise
        finally:
            process.kill()
    assert (process.returncode, said) == (0, b"interrupted and Stopped\n")


@pytest.mark.timeout(300)
def test_a_demo_that_is_terminated_leaves_nothing_running() -> None:
    mark = f"THRESHER_TEST_MARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [sys.executable, "-m", "thresher", "demo"], env=environment(**{name: value}), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            eventually(lambda: any(" run --name demo" in line for line in marked(mark).values()), PATIENCE_SECONDS)
            # Servers do not inherit the mark.
            started = descendants(process.pid)
            signal_a_thread(process.pid, signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 130
            eventually(lambda: not any(map(alive, started)), PATIENCE_SECONDS)
            eventually(lambda: not marked(mark), PATIENCE_SECONDS, lambda: str(marked(mark)))
        finally:
            process.kill()
