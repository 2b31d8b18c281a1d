"""Sends whose answers are late: a message that was sent once is in the queue once, or its outcome is unknown."""

import time
from collections import Counter

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from thresher.devstack.stack import Stack
from thresher.queue import QueueService, SendUnknown
from thresher.testing.proxy import Api, Cut, Hold, KafkaProxy

PATIENCE_SECONDS = 60.0
SEND_MS = 4_000


def test_a_send_that_timed_out_repeats_no_other_message(stack: Stack, shared_proxy: KafkaProxy) -> None:
    proxy = shared_proxy
    topics = QueueTopics(proxy.address, direct=stack.kafka.bootstrap, partitions=1, send_timeout=SEND_MS)
    with QueueService(topics.config) as service:
        producer = service.queue("q").producer()
        producer.send(b"first")
        # The broker stores both messages, and its answers are held until one send has timed out.
        held = proxy.on_answer(Api.PRODUCE, Hold())
        early = producer.send_async(b"early")
        held.wait()
        time.sleep(SEND_MS / 2000)
        late = producer.send_async(b"late")
        eventually(lambda: topics.ends() == {0: 3}, PATIENCE_SECONDS)
        assert isinstance(early.exception(PATIENCE_SECONDS), SendUnknown)
        held.release(Cut())
        late.exception(PATIENCE_SECONDS)
        producer.flush(PATIENCE_SECONDS)
    contents = Counter(content for _, _, content in topics.contents(topics.config.message_topic))
    assert contents == {b"first": 1, b"early": 1, b"late": 1}, f"late: {late}"
