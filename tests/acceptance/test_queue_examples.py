"""The page "Queues in ten minutes" and the example of a worker, run unchanged."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import alive, descendants, environment, eventually
from tests.queue.topics import QueueTopics
from thresher.config.document import read
from thresher.devstack.stack import Stack
from thresher.queue import QueueService
from thresher.queue.configuration import configured

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/queues.md").read_text()
PATIENCE_SECONDS = 60.0


@pytest.fixture
def topics(stack: Stack) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap)


def test_the_documented_programs_run(topics: QueueTopics, capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"^<!-- run -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(programs) == 3
    for program in programs:
        exec(compile(program, "docs/queues.md", "exec"), {"config": topics.config})  # noqa: S102 - our own page
    assert sorted(capsys.readouterr().out.splitlines()) == ["b'order 1' 1", "b'order 2' 1"]
    assert len(topics.ended(b"orders")) == 2


def test_the_documented_configuration_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "queues.yaml").write_text(text)
    assert configured(read(tmp_path / "queues.yaml")).redelivery_timeout == 60_000


def test_the_worker_acks_handled_messages_and_stops_on_a_signal(topics: QueueTopics) -> None:
    with QueueService(topics.config) as service:
        sent = {service.queue("orders").producer().send(b"%d" % number) for number in range(20)}
    variables = environment(
        THRESHER_BOOTSTRAP_SERVERS=topics.config.bootstrap_servers,
        THRESHER_MESSAGE_TOPIC=topics.config.message_topic,
        THRESHER_MARKER_TOPIC=topics.config.marker_topic,
    )
    worker = subprocess.Popen(
        [sys.executable, ROOT / "examples/queue_worker.py", "orders"],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        eventually(lambda: topics.ended(b"orders") == sent, PATIENCE_SECONDS)
        worker.send_signal(signal.SIGTERM)
        out, errors = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, errors
    assert len(out.splitlines()) == 20


def test_consumers_in_a_process_of_their_own_start_again_after_a_crash(topics: QueueTopics) -> None:
    variables = environment(
        THRESHER_BOOTSTRAP_SERVERS=topics.config.bootstrap_servers,
        THRESHER_MESSAGE_TOPIC=topics.config.message_topic,
        THRESHER_MARKER_TOPIC=topics.config.marker_topic,
        # So long the crashed member keeps its partitions.
        THRESHER_CONSUMER_SESSION_TIMEOUT_MS="6000",
    )
    parent, worker_program = (str(ROOT / "examples" / name) for name in ("consumer_process.py", "queue_worker.py"))
    program = [sys.executable, parent, sys.executable, worker_program, "orders"]
    keeper = subprocess.Popen(program, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with QueueService(topics.config) as service, service.queue("orders").producer() as producer:
            sent = {producer.send(b"before")}
            eventually(lambda: topics.ended(b"orders") == sent, PATIENCE_SECONDS)
            (worker,) = descendants(keeper.pid)
            # As a read beyond the client's memory ends it.
            os.kill(worker, signal.SIGSEGV)
            sent.add(producer.send(b"after"))
            eventually(lambda: topics.ended(b"orders") == sent, PATIENCE_SECONDS)
            (again,) = descendants(keeper.pid)
        assert again != worker
        keeper.send_signal(signal.SIGTERM)
        out, errors = keeper.communicate(timeout=90)
    finally:
        keeper.kill()
        keeper.wait()
    assert (keeper.returncode, alive(again)) == (0, False), errors
    assert [line.split()[1] for line in out.splitlines()] == ["before", "after"]
    assert "the consumers ended with status -11: they start again in 0.5 s" in errors
