"""A tail publishes what is committed to an outbox, read from the log: each row once, in the order of commits."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.tail.tailing import TailPlace
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session
from thresher.tail.settings import Via

Places = Callable[..., TailPlace]


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Iterator[Places]:
    made: list[TailPlace] = []

    def make(**options: Any) -> TailPlace:
        made.append(TailPlace(stack, dsn, topic_prefix, **options))
        return made[-1]

    yield make
    for each in made:
        each.drop_slot()


def values(messages: Any) -> list[bytes]:
    return [message.value() for message in messages]


@pytest.mark.parametrize("via", list(Via))
def test_rows_are_published_once_and_in_order(place: Places, via: Via) -> None:
    at = place(via=via)
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(50)))
    with at.tailing() as tailing:
        assert values(at.read(50)) == [b"%d" % n for n in range(50)]
        at.stash(Message(topic=at.topic, key="k", value="50", headers={"a": "1"}))
        found = at.read(51)
        assert found[-1].headers() == [("a", b"1")]
        tailing.until(lambda: tailing.total("relayed") == 51)
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.stash(Message(topic=at.topic, key="k", value="51"))
        assert values(at.read(52)) == [b"%d" % n for n in range(52)]
    assert at.dead() == []


def test_what_is_rolled_back_is_not_published(place: Places) -> None:
    at = place()
    with at.tailing(), psycopg.connect(at.dsn) as one, psycopg.connect(at.dsn) as other:
        at.outbox.stash(one, Message(topic=at.topic, key="k", value="one"))
        at.outbox.stash(other, Message(topic=at.topic, key="k", value="other"))
        other.commit()
        with one.transaction() as part:
            at.outbox.stash(one, Message(topic=at.topic, key="k", value="undone"))
            raise psycopg.Rollback(part)
        at.read(1)
        one.commit()
        at.outbox.stash(other, Message(topic=at.topic, key="k", value="never"))
        other.rollback()
        assert values(at.read(2)) == [b"other", b"one"]
