"""Message queues on Kafka: many logical queues on two topics, with individual acks and redelivery."""

from thresher.queue.configuration import HandOff, QueueConfig
from thresher.queue.consumer import QueueConsumer
from thresher.queue.message import Message, MessageId
from thresher.queue.problem import (
    AlreadySettled,
    DeadLetterRefused,
    MarkerUnknown,
    MessageInvalid,
    OffsetsLost,
    QueueClosed,
    SendRefused,
    SendUnknown,
    TopicsUnsuitable,
)
from thresher.queue.queue import Queue
from thresher.queue.sending.producer import QueueProducer
from thresher.queue.service import QueueService

__all__ = [
    "AlreadySettled",
    "DeadLetterRefused",
    "HandOff",
    "MarkerUnknown",
    "Message",
    "MessageId",
    "MessageInvalid",
    "OffsetsLost",
    "Queue",
    "QueueClosed",
    "QueueConfig",
    "QueueConsumer",
    "QueueProducer",
    "QueueService",
    "SendRefused",
    "SendUnknown",
    "TopicsUnsuitable",
]
