"""Queues for asyncio: the same queues, by the same threads. Nothing that waits blocks the event loop.

1. `QueueService` is given a configuration, or a service: one on Kafka, or one in memory. A service that it was given
   stays open when it is closed; the consumers and producers that were made here are closed.
2. A `receive` that waits needs no thread: a consumer tells the loop whenever it may have more messages, and one of the
   coroutines that wait takes them.
3. Messages are taken in the last step of `receive`, so that a `receive` that is cancelled has taken none.
4. A send that is cancelled may have been sent. An ack that is cancelled was given: only its answer is not waited for.
5. A `close` that is cancelled goes on in a thread, and the interpreter waits for it when the program ends.

All of it is for one event loop: the one that runs when it is made.
"""

from thresher.queue.aio.consumer import QueueConsumer
from thresher.queue.aio.message import Message
from thresher.queue.aio.producer import QueueProducer
from thresher.queue.aio.running import Handler
from thresher.queue.aio.service import BlockingService, Queue, QueueService

__all__ = ["BlockingService", "Handler", "Message", "Queue", "QueueConsumer", "QueueProducer", "QueueService"]
