"""The end of a batch that cannot be read is found exactly: no record before or behind it is left out."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from thresher.kafka import unreadable_batch
from thresher.kafka.problem import BrokerLost
from thresher.kafka.unreadable_batch import Unreadable, end_of_batch, unreadable_at


@given(first=st.integers(0, 10**12), records=st.integers(1, 10**6))
def test_the_end_of_a_batch_is_found_in_few_fetches(first: int, records: int) -> None:
    fetched: list[int] = []

    def is_inside(offset: int) -> bool:
        fetched.append(offset)
        return first <= offset < first + records

    assert end_of_batch(first, is_inside) == first + records
    assert len(fetched) <= 2 * records.bit_length() + 1


def test_an_unanswered_fetch_is_an_error() -> None:
    def unanswered(_: int) -> bool:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        end_of_batch(5, unanswered)


class Answer:
    """What a client returns: an error, with the first offset of the batch that it is about."""

    def __init__(self, code: int, offset: int) -> None:
        self._error, self._offset = KafkaError(code), offset

    def error(self) -> KafkaError:
        return self._error

    def offset(self) -> int:
        return self._offset


def client(answer: Callable[[int], Answer]) -> type:
    class Client:
        def __init__(self, *_: object, **__: object) -> None:
            self._at = 0

        def assign(self, places: list[TopicPartition]) -> None:
            self._at = places[0].offset

        def poll(self, _: float) -> Any:
            return answer(self._at)

        def close(self) -> None:
            pass

    return Client


def test_an_error_that_tells_nothing_is_no_end_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a wrong end, inside of the batch, a reader would stand still for ever."""
    passing = KafkaError.UNKNOWN_TOPIC_OR_PART

    def met(at: int) -> Answer:
        return Answer(KafkaError._BAD_COMPRESSION, 5) if at < 25 else Answer(KafkaError._PARTITION_EOF, at)

    monkeypatch.setattr(unreadable_batch, "Consumer", client(met))
    assert unreadable_at("t", 0, 5, {}) == Unreadable(first=5, after=25)
    monkeypatch.setattr(unreadable_batch, "Consumer", client(lambda at: Answer(passing, at) if at > 10 else met(at)))
    with pytest.raises(BrokerLost, match="t/0 cannot be read at offset 5"):
        unreadable_at("t", 0, 5, {})
