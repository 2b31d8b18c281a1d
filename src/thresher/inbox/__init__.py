"""The inbox: each message is processed once, although it may be delivered more than once.

`Inbox.once` stores a row for each message in the application's own transaction. `consume` does so for the records of a
Kafka consumer. No Spark, no Java.
"""

from thresher.db.postgres.caller_connection import NotInTransaction, UnsupportedConnection
from thresher.inbox.inbox import Inbox, OnRepeat
from thresher.inbox.problem import InboxBusy, InboxRefused, MessageRepeated, RecordWithoutId
from thresher.inbox.schema import check_inbox, create_inbox, inbox_ddl

__all__ = [
    "Inbox",
    "InboxBusy",
    "InboxRefused",
    "MessageRepeated",
    "NotInTransaction",
    "OnRepeat",
    "RecordWithoutId",
    "UnsupportedConnection",
    "check_inbox",
    "create_inbox",
    "inbox_ddl",
]
