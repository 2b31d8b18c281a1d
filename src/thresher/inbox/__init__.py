"""The inbox: each message is processed once, though it may come more than once.

`Inbox.once` ties the processing of a message to a row in the application's own transaction. `consume` ties a Kafka
consumer to that. No Spark, no Java.
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
