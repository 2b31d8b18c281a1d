"""The place of a dispatcher's test: an outbox, a topic, and the contents of both."""

import uuid
from collections import Counter
from typing import Any

import psycopg

from tests.committed_records import committed_records
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import ConsumerRecord
from thresher.outbox import Message, Outbox, Receipt, create_schema
from thresher.publisher import Dispatcher

MANY = 1_200
NAME = TableName(table="outbox")
AWAY = {"bootstrap.servers": "127.0.0.1:1"}


class Place:
    """An outbox, a topic, and a dispatcher between the two."""

    def __init__(self, stack: Stack, dsn: str) -> None:
        self.dsn = dsn
        self.topic = f"dispatch-{uuid.uuid4().hex[:8]}"
        self.kafka = {"bootstrap.servers": stack.kafka.bootstrap}
        Admin.of(self.kafka).create_topic(self.topic, partitions=3)
        self.outbox = Outbox()
        with psycopg.connect(dsn) as connection:
            create_schema(connection, NAME)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn)

    def dispatcher(self, **changes: Any) -> Dispatcher:
        return Dispatcher(self.connect, changes.pop("kafka", self.kafka), **changes)

    def message(self, number: int, **more: Any) -> Message:
        return Message(topic=self.topic, **{"key": f"k{number % 7}", "value": str(number), **more})

    def stash(self, numbers: range = range(1), **more: Any) -> list[Receipt]:
        with self.connect() as connection:
            messages = [self.message(number, **more) for number in numbers]
            return self.outbox.stash_many(connection, messages, receipts=True)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def pending(self) -> int:
        return int(self.sql("SELECT count(*) FROM outbox WHERE dispatched_time IS NULL")[0][0])

    def records(self) -> list[ConsumerRecord]:
        return committed_records(self.topic, self.kafka)

    def numbers(self) -> Counter[int]:
        return Counter(int(record.value or b"") for record in self.records())
