"""The outbox writer: stores messages in the application's own transaction; a relay sends them to Kafka."""

from thresher.outbox.admission import InvalidMessage, Limits
from thresher.outbox.log_slot import NoSlot
from thresher.outbox.message import Header, Message
from thresher.outbox.outstanding import OutboxFull
from thresher.outbox.receipt import NoReceiptsInPipeline, Receipt
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
    "NoReceiptsInPipeline",
    "NoSlot",
    "NotInTransaction",
    "Outbox",
    "OutboxFull",
    "Receipt",
    "SchemaRefused",
    "Shape",
    "UnsupportedConnection",
    "check_schema",
    "create_schema",
    "ddl",
]
