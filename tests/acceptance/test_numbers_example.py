"""The engine's example, from files to a real Kafka: every number arrives in order, although processes are killed."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.processes import alive, command_line, descendants, environment, eventually, parent, spark_submit_variables
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

EXAMPLE = Path(__file__).parents[2] / "examples" / "numbers_to_kafka.py"
SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
SHARDS, NUMBERS = 2, 600
# Only how long a failing test waits. Seen: 12 s for the longest wait.
PATIENCE = 120.0


@pytest.fixture
def topic(stack: Stack, topic_prefix: str) -> str:
    Admin(stack.kafka.bootstrap).create_topic(f"{topic_prefix}squares", partitions=1)
    return f"{topic_prefix}squares"


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    directory = tmp_path / "numbers"
    directory.mkdir()
    for shard in range(SHARDS):
        (directory / f"{shard}.txt").write_text("".join(f"{number}\n" for number in expected(shard)))
    return directory


def expected(shard: int) -> range:
    return range(shard * 1_000_000, shard * 1_000_000 + NUMBERS)


def arrived(stack: Stack, topic: str) -> dict[int, list[int]]:
    """Return the numbers of each shard in Kafka's order; the test fails if one has not its square."""
    consumer = Consumer({"bootstrap.servers": stack.kafka.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}
    count = 0
    while count < end:
        for message in consumer.consume(1000, timeout=10):
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            assert int(value) == int(key) ** 2
            found[int(key) // 1_000_000].append(int(key))
            count += 1
    consumer.close()
    return found


def command(stack: Stack, topic: str, numbers: Path, *options: str) -> list[str]:
    return [
        str(EXAMPLE), "--bootstrap", stack.kafka.bootstrap, "--topic", topic, "--numbers", str(numbers),
        "--shards", str(SHARDS), *options,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "runner",
    [
        pytest.param([sys.executable], id="plain", marks=pytest.mark.soak),
        pytest.param([SPARK_SUBMIT, "--master", "local[4]"], id="submitted"),
    ],
)
def test_all_numbers_arrive_once_and_in_order(stack: Stack, topic: str, numbers: Path, runner: list[str]) -> None:
    variables = {"PYSPARK_PYTHON": sys.executable, **spark_submit_variables()}
    answer = subprocess.run(
        [*runner, *command(stack, topic, numbers)],
        env=environment(**variables), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    shot = json.loads(answer.stdout.splitlines()[-1])
    assert [shard["state"] for shard in shot["shards"]] == ["finished"] * SHARDS
    for shard, found in arrived(stack, topic).items():
        # Each number comes once unless a shard was restarted, which a stall of the machine may cause.
        restarted = shot["shards"][shard]["restarts"] > 0
        assert restarted or shot["shards"][shard]["counts"] == {"squared": NUMBERS, "published": NUMBERS}
        assert (list(dict.fromkeys(found)) if restarted else found) == list(expected(shard))


def test_killed_workers_lose_nothing_and_reorder_nothing(stack: Stack, topic: str, numbers: Path) -> None:
    options = ("--follow", "--batch", "5")
    # In portions, so that workers have more to do after each kill, however fast they are.
    portions = list(itertools.pairwise((0, NUMBERS // 3, NUMBERS // 3 * 2, NUMBERS)))
    whole = {shard: [f"{number}\n" for number in expected(shard)] for shard in range(SHARDS)}
    for shard in range(SHARDS):
        (numbers / f"{shard}.txt").write_text("")
    with subprocess.Popen(
        [sys.executable, *command(stack, topic, numbers, *options)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as program:  # fmt: skip
        for begin, end in portions:
            for shard, lines in whole.items():
                path = numbers / f"{shard}.txt"
                written = "".join(lines[:end])
                # A file may grow within a line: the last digit comes with the next portion.
                with path.open("a") as file:
                    file.write((written if end == NUMBERS else written[:-2])[path.stat().st_size :])
            if end == NUMBERS:
                break
            eventually(lambda begin=begin: any(done(numbers, shard) > begin for shard in range(SHARDS)), PATIENCE)  # type: ignore[misc]
            eventually(lambda: len(workers(program.pid)) == SHARDS, PATIENCE)
            for pid in workers(program.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # All but the line that still grows.
            eventually(lambda end=end: all(done(numbers, each) == end - 1 for each in range(SHARDS)), PATIENCE)  # type: ignore[misc]
        eventually(lambda: all(done(numbers, shard) == NUMBERS for shard in range(SHARDS)), PATIENCE)
        everybody = descendants(program.pid)
        program.terminate()
        output, _ = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0
    eventually(lambda: not any(map(alive, everybody)), 60)
    assert sum(shard["restarts"] for shard in json.loads(output)["shards"]) >= SHARDS
    for shard, found in arrived(stack, topic).items():
        # A batch that was acknowledged but not noted is repeated as a whole, right after itself.
        assert list(dict.fromkeys(found)) == list(expected(shard))
        assert all(number - before >= -4 for before, number in itertools.pairwise(found))


def done(numbers: Path, shard: int) -> int:
    path = numbers / f"{shard}.done"
    return int(path.read_text()) if path.exists() else 0


def workers(pid: int) -> set[int]:
    """Return the Python workers of a program: the children of the worker daemon."""
    below = descendants(pid)
    daemons = {pid for pid in below if b"spark.daemon" in command_line(pid)}
    found = set()
    for each in below:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has just ended
            if alive(each) and parent(each) in daemons:
                found.add(each)
    return found
