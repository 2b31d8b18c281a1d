"""Publishes an application's messages by a backend: to Kafka, to its outbox, or to memory for tests.

Needs neither Spark nor Java.
"""

from thresher.publisher.choice import BackendUnknown, backend, set_backend
from thresher.publisher.dispatch_table import DispatchRefused
from thresher.publisher.dispatcher import Cleared, Dispatcher
from thresher.publisher.encoding import EncodingFailed, as_is, as_json
from thresher.publisher.kafka_backend import PublishFailed, PublishUnknown
from thresher.publisher.memory_backend import MemoryBackend
from thresher.publisher.port import Backend
from thresher.publisher.publisher import Publisher

__all__ = [
    "Backend",
    "BackendUnknown",
    "Cleared",
    "DispatchRefused",
    "Dispatcher",
    "EncodingFailed",
    "MemoryBackend",
    "PublishFailed",
    "PublishUnknown",
    "Publisher",
    "as_is",
    "as_json",
    "backend",
    "set_backend",
]
