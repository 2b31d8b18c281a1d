"""Queues for asyncio: the same queues and the same client threads. No wait blocks the event loop.

1. `QueueService` takes a configuration, or a service on Kafka or in memory. Closing it closes the consumers and
   producers made here. A service that was passed in stays open.
2. A waiting `receive` occupies no thread. The consumer notifies the loop when more messages may be available, and one
   of the waiting coroutines takes them.
3. `receive` takes messages in its last step, so a cancelled `receive` has taken none.
4. A cancelled send may still be sent. A cancelled ack is still sent; only the wait for the broker's answer ends.
5. A cancelled `close` continues in a thread, and the interpreter waits for that thread at exit.

Every object belongs to the event loop that was running when the object was made.
"""

from thresher.queue.aio.consumer import QueueConsumer
from thresher.queue.aio.message import Message
from thresher.queue.aio.producer import QueueProducer
from thresher.queue.aio.running import Handler
from thresher.queue.aio.service import BlockingService, Queue, QueueService

__all__ = ["BlockingService", "Handler", "Message", "Queue", "QueueConsumer", "QueueProducer", "QueueService"]
