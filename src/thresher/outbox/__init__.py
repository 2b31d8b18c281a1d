"""The outbox writer: messages stored in the application's own transaction, for a relay to carry to Kafka."""

from thresher.outbox.admission import InvalidMessage, Limits
from thresher.outbox.message import Header, Message
from thresher.outbox.schema import Check, Finding, SchemaRefused, check_schema, create_schema, ddl
from thresher.outbox.shape import Shape
from thresher.outbox.writer import MessageNotStored, NotInTransaction, Outbox, UnsupportedConnection

__all__ = [
    "Check",
    "Finding",
    "Header",
    "InvalidMessage",
    "Limits",
    "Message",
    "MessageNotStored",
    "NotInTransaction",
    "Outbox",
    "SchemaRefused",
    "Shape",
    "UnsupportedConnection",
    "check_schema",
    "create_schema",
    "ddl",
]
