"""Relays that share an outbox by topic locks, on real servers: workers in threads, without Spark."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.processes import eventually
from tests.relay.relaying import RELAYED_SECONDS, Place
from thresher.db.postgres.topic_locks import locks_ddl
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import TopicLocking
from thresher.relay.topic_lock.backend import DbBackend

Places = Callable[..., "LockedPlace"]


class LockedPlace(Place):
    """An outbox with what topic locks need."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in locks_ddl(self.table, self.shape):
                connection.execute(statement.encode())

    @contextmanager
    def backend(self, *, threads: int = 2, **changes: Any) -> Iterator[DbBackend]:
        locking = {"rest_seconds": 0.05, **changes.pop("locking", {})}
        limits = {"batch_rows": 100, **changes.pop("limits", {})}
        settings = self.settings(topic_locking=TopicLocking(**locking), limits=limits, **changes)
        with DbBackend(settings, threads=threads) as backend:
            yield backend

    def topics(self, count: int) -> list[str]:
        names = [f"{self.prefix}t{number}" for number in range(count)]
        for name in names:
            self.admin.create_topic(name, partitions=2)
        return names

    def until_sent(self, backend: DbBackend, seconds: float = RELAYED_SECONDS) -> None:
        def sent() -> bool:
            if backend.error is not None:
                raise backend.error
            return self.pending() == 0

        eventually(sent, seconds, lambda: f"{self.pending()} rows wait: {dict(backend.counts)} {self.locks()}")

    def locks(self) -> list[tuple[Any, ...]]:
        return self.sql(
            "SELECT topic, locked_by, locked_at, error, retries, token, reason FROM outbox_lock ORDER BY topic"
        )


@pytest.fixture
def place(stack: Stack, dsn: str, topic_prefix: str) -> Places:
    def make(**options: Any) -> LockedPlace:
        return LockedPlace(stack, dsn, topic_prefix, **options)

    return make


def test_rows_of_all_topics_arrive_once_and_in_order(place: Places) -> None:
    at = place()
    topics = at.topics(5)
    at.stash(*(Message(topic=topics[n % 5], key=f"k{n % 7}", value=str(n)) for n in range(2_000)))
    began = time.monotonic()
    with at.backend() as backend:
        at.until_sent(backend)
        print("took", time.monotonic() - began, dict(backend.counts))
    found = at.read(2_000, *topics)
    assert sorted(int(message.value()) for message in found) == list(range(2_000))
    for topic in topics:
        for key in {message.key() for message in found}:
            numbers = [int(m.value()) for m in found if m.key() == key and m.topic() == topic]
            assert numbers == sorted(numbers)
    assert all(by is None and not error for _, by, _, error, *_ in at.locks())
