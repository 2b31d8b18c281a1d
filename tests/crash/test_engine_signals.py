"""Signals stop the engine after its open batches: in a program, under `spark-submit`, in a terminal. A second: at once.

Time limits allow for a slow machine that stalls. Seen on a fast one: a stop took 1.6 s plus the open batch; a stop at
once took 0.3 s.
"""

import contextlib
import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.engine.driver import STEADY, Driver, driven
from tests.processes import command_line, listening, signal_a_thread, spark_submit_variables
from tests.stranger import attack_program

STOP_SECONDS = 90.0
AT_ONCE_SECONDS = 60.0
BATCH_SECONDS = 1.0
# Makes the terminal on standard input the controlling terminal of a new session, as a shell does.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
SPARK_SUBMIT = (
    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    *("--master", "local[4]", "--driver-memory", "512m", "--conf", "spark.ui.enabled=false"),
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def chain(trace: Path, seconds: float = BATCH_SECONDS) -> list[tuple[str, dict[str, object]]]:
    return [("ticks", {"every": 0.01}), ("slow", {"trace": str(trace), "seconds": seconds})]


def submit_variables() -> dict[str, str]:
    return {"PYSPARK_PYTHON": sys.executable, **spark_submit_variables()}


def program_of(driver: Driver) -> int:
    """Return the process id of the Python program below `spark-submit`."""
    (found,) = [
        each.pid for each in driver.seen
        if each.pid != driver.process.pid and each.alive and b"program.py" in command_line(each.pid)
    ]  # fmt: skip
    return found


def in_the_middle_of_a_batch(driver: Driver, trace: Path) -> None:
    driver.up()
    text = trace.read_text()
    while trace.read_text().count("begin") == text.count("begin"):
        time.sleep(0.01)


def all_batches_were_finished(trace: Path) -> bool:
    lines = trace.read_text().splitlines()
    began = [line.split(" ", 1)[1] for line in lines if line.startswith("begin")]
    ended = [line.split(" ", 1)[1] for line in lines if line.startswith("end")]
    return bool(began) and sorted(began) == sorted(ended)


def test_a_terminated_program_finishes_its_batches_and_exits_cleanly(trace: Path, temporary: Path) -> None:
    with driven(chain(trace), variables={"TMPDIR": str(temporary)}) as driver:
        in_the_middle_of_a_batch(driver, trace)
        driver.process.terminate()
        assert driver.end(STOP_SECONDS) == 0
        assert [shard["state"] for shard in driver.shot["shards"]] == ["stopped", "stopped"]
        assert all_batches_were_finished(trace)
        driver.gone()
    assert not list(temporary.iterdir())


def test_a_second_signal_ends_everything_at_once(trace: Path) -> None:
    # The batch and the grace both last longer than the limit for "at once".
    with driven(chain(trace, seconds=600.0), policy={**STEADY, "grace_seconds": 600.0}) as driver:
        driver.up()
        # The kernel may deliver a signal to any thread.
        signal_a_thread(driver.process.pid, signal.SIGTERM)
        driver.until(lambda shot: shot["state"] == "stopping")
        signal_a_thread(driver.process.pid, signal.SIGTERM)
        assert driver.end(AT_ONCE_SECONDS) == 1
        assert driver.shot["raised"] == "StopForced"
        driver.gone()
    assert not all_batches_were_finished(trace)


def test_a_signal_while_spark_starts_stops_the_program(trace: Path, temporary: Path) -> None:
    # Early and late in the start of 5 s: the JVM's launch script runs, then its context starts.
    delays = (0.5, 2.5)
    with contextlib.ExitStack() as stack:
        drivers = [stack.enter_context(driven(chain(trace), variables={"TMPDIR": str(temporary)})) for _ in delays]
        for driver in drivers:
            driver.until(lambda shot: shot["state"] != "new")
        began = time.monotonic()
        for driver, delay in zip(drivers, delays, strict=True):
            time.sleep(max(0.0, began + delay - time.monotonic()))
            driver.look()
            driver.process.terminate()
        for driver in drivers:
            assert driver.end(STOP_SECONDS) == 0
            assert driver.shot["state"] == "done"
            driver.gone()
    assert not list(temporary.iterdir())


def test_ctrl_c_in_a_terminal_stops_the_engine(trace: Path, temporary: Path, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    command = (sys.executable, "-c", TAKE_TERMINAL, sys.executable)
    with driven(chain(trace), command=command, terminal=theirs, variables={"TMPDIR": str(temporary)}) as driver:
        in_the_middle_of_a_batch(driver, trace)
        os.write(ours, b"\x03")
        assert driver.end(STOP_SECONDS) == 0
        assert [shard["state"] for shard in driver.shot["shards"]] == ["stopped", "stopped"]
        assert all_batches_were_finished(trace)
        driver.gone()
    assert not list(temporary.iterdir())


def test_sigterm_under_spark_submit_stops_the_engine(trace: Path) -> None:
    with driven(chain(trace), command=SPARK_SUBMIT, variables=submit_variables()) as driver:
        driver.up()
        # Java's gateway and Spark's two.
        attack_program(driver.process.pid, ports=3, secrets=[], meanwhile=driver.up)
        in_the_middle_of_a_batch(driver, trace)
        driver.look()
        # A port of the program's would be open to every user of the machine.
        assert listening({program_of(driver)}) == []
        driver.process.terminate()
        assert driver.end(STOP_SECONDS) == 143
        assert all_batches_were_finished(trace)
        driver.gone()


@pytest.mark.soak
def test_ctrl_c_under_spark_submit_stops_the_engine(trace: Path, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    command = (sys.executable, "-c", TAKE_TERMINAL, *SPARK_SUBMIT)
    with driven(chain(trace), command=command, terminal=theirs, variables=submit_variables()) as driver:
        in_the_middle_of_a_batch(driver, trace)
        driver.look()
        os.write(ours, b"\x03")
        driver.end(STOP_SECONDS)
        assert all_batches_were_finished(trace)
        driver.gone()


def test_killing_spark_submit_or_its_program_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    # A killed JVM leaves files in its temporary directory. The user has to remove these; here the test does.
    command = (*SPARK_SUBMIT, "--driver-java-options", f"-Djava.io.tmpdir={tmp_path}")
    variables = submit_variables() | {"SPARK_LOCAL_DIRS": str(tmp_path)}
    # A JVM that waited for its dead program would wait longer than the test.
    policy = {**STEADY, "grace_seconds": 600.0}
    with (
        driven(chain(trace), command=command, variables=variables) as one,
        driven(chain(trace), command=SPARK_SUBMIT, variables=submit_variables(), policy=policy) as other,
    ):
        one.up()
        other.up()
        one.look()
        one.process.kill()
        other.look()
        os.kill(program_of(other), signal.SIGKILL)
        one.gone()
        other.end(STOP_SECONDS)
        other.gone()


@pytest.mark.soak
def test_spark_submit_settings_that_break_the_engine_are_refused() -> None:
    command = (*SPARK_SUBMIT, "--conf", "spark.speculation=true")
    with driven(command=command, variables=submit_variables()) as driver:
        assert driver.end(60) == 2
        assert "spark.speculation is true" in driver.shot["error"]
