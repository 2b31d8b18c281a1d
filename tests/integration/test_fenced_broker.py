"""Answers of a fenced broker: it names no broker, and no leader of a partition."""

import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.processes import PYTHON_PATH
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Message
from thresher.publisher.kafka_backend import KafkaBackend
from thresher.testing.proxy import Api, Frame, KafkaProxy, Replace, Verdict

_NO_RIGHTS = struct.pack(">i", -(2**31))
_NOT_LEADER, _LEADER_NOT_AVAILABLE = 6, 5


def _framed(frame: Frame, body: bytes) -> Replace:
    """Return the answer with this body, after a header without tagged fields."""
    raw = struct.pack(">i", frame.correlation) + b"\0" + body
    return Replace(raw=struct.pack(">i", len(raw)) + raw)


def _no_brokers(topic: str) -> Callable[[Frame], Verdict | None]:
    """Answer with no broker, and if a topic was asked for, with one leaderless partition of this one."""
    asked: dict[tuple[int, int], bool] = {}
    answered: set[int] = set()

    def request(frame: Frame) -> None:
        asked[frame.connection, frame.correlation] = topic.encode() in frame.raw

    def answer(frame: Frame) -> Verdict | None:
        if frame.connection not in answered:
            # The first answer tells a client where the broker is.
            answered.add(frame.connection)
            return None
        if frame.version not in {12, 13}:
            raise AssertionError(f"Metadata version {frame.version} is not known here")
        topics = b"\1"
        if asked.get((frame.connection, frame.correlation)):
            partition = struct.pack(">hiii", _LEADER_NOT_AVAILABLE, 0, -1, 0) + b"\2" + struct.pack(">i", 1) + b"\1\1\0"
            name = bytes([len(topic) + 1]) + topic.encode()
            topics = b"\2" + struct.pack(">h", 0) + name + b"\1" * 16 + b"\0\2" + partition + _NO_RIGHTS + b"\0"
        error = struct.pack(">h", 0) if frame.version >= 13 else b""
        return _framed(frame, struct.pack(">i", 0) + b"\1\0" + struct.pack(">i", -1) + topics + error + b"\0")

    answer.request = request  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("call", ["require_answer()", "cluster(2)", "facts([topic])", "names()", "topic(topic)"])
def test_a_broker_that_names_no_broker_ends_no_process(
    shared_proxy: KafkaProxy, stack: Stack, topic_prefix: str, call: str
) -> None:
    topic = f"{topic_prefix}.fenced"
    Admin(stack.kafka.bootstrap).create_topic(topic)
    answer = _no_brokers(topic)
    shared_proxy.on_request(Api.METADATA, answer.request)  # type: ignore[attr-defined]
    rule = shared_proxy.on_answer(Api.METADATA, answer)
    program = f"""
import thresher.kafka.admin as module
module._CALLS_SECONDS = (1.0, 1.0)
admin, topic = module.Admin({shared_proxy.address!r}), {topic!r}
# The first call may be answered before the client has asked a second time on any connection.
for _ in range(3):
    try:
        admin.{call}
    except module.KafkaException as error:
        print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": PYTHON_PATH}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert rule.matched > 0, "the client never met the answer"


def test_a_producer_survives_a_partition_without_leader(
    shared_proxy: KafkaProxy, stack: Stack, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}.leaderless"
    Admin(stack.kafka.bootstrap).create_topic(topic)

    def leaderless(frame: Frame) -> Verdict:
        assert frame.version >= 10
        result = struct.pack(">ihqqq", 0, _NOT_LEADER, -1, -1, -1) + b"\1\0"
        leader = struct.pack(">ii", -1, 0) + b"\0"
        tags = b"\1\0" + bytes([len(leader)]) + leader
        name = bytes([len(topic) + 1]) + topic.encode()
        return _framed(frame, b"\2" + name + b"\2" + result + tags + b"\0" + struct.pack(">i", 0) + b"\0")

    backend = KafkaBackend({"bootstrap.servers": shared_proxy.address}, waits=True)
    backend.publish([Message(topic=topic, key="k", value=b"1")], None)
    rule = shared_proxy.on_answer(Api.PRODUCE, leaderless, times=3)
    backend.publish([Message(topic=topic, key="k", value=b"2")], None)
    assert rule.matched == 3
    backend.close()
