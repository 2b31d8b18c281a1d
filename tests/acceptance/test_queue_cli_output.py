"""`thresher queue receive` with an output that cannot be written: a message that was not printed is not acked."""

import json
import subprocess
import sys
from pathlib import Path

from tests.processes import environment
from tests.queue.topics import QueueTopics
from thresher.devstack.stack import Stack
from thresher.queue import QueueService


def test_a_message_that_was_not_printed_is_not_acked(stack: Stack, tmp_path: Path) -> None:
    topics = QueueTopics(stack.kafka.bootstrap)
    with QueueService(topics.config) as service:
        service.queue("q").producer().send(b"x")
    file = tmp_path / "queues.yaml"
    # JSON is YAML too.
    file.write_text(json.dumps(topics.config.model_dump(by_alias=True, exclude_unset=True, mode="json")))
    command = [sys.executable, "-m", "thresher", "queue", "receive", "-c", str(file), "q"]
    with Path("/dev/full").open("wb") as full:
        answer = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=150, check=False, env=environment()
        )
    assert answer.returncode != 0, answer.stderr
    assert len(topics.started(b"q")) == 1
    assert topics.ended(b"q") == set()
