"""A transaction is opened ahead only when rows are likely to come."""

from collections.abc import Callable
from typing import Any

import pytest

from thresher.delivery.row import Record
from thresher.kafka.transaction.opening import TransactionOpening

OPENER = Record("progress", b"", None, 0, 0, None)


class Client:
    """Records the calls of a producer, with a clock that each wait moves."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = 100.0
        self.answers_after = 0.002
        self._sent = 0.0

    def begin(self) -> None:
        self.calls.append("begin")

    def produce(self, records: Any) -> None:
        assert list(records) == [(0, OPENER)]
        self._sent = self.now

    def await_sent(self, seconds: float) -> bool:
        self.now += seconds
        return self.now - self._sent >= self.answers_after

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def commit(self) -> None:
        self.calls.append("commit")


@pytest.fixture
def client() -> Client:
    return Client()


def made(client: Client, *, ahead: bool = True) -> TransactionOpening:
    return TransactionOpening(
        lambda: client,  # type: ignore[arg-type, return-value]
        OPENER,
        ahead=ahead,
        monotonic=lambda: client.now,
        sleep=client.sleep,
    )


def never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    left = iter(range(calls))
    return lambda: next(left, None) is None


def carry(client: Client, opened: TransactionOpening, rows: int = 1) -> None:
    opened.begin()
    client.now += 0.004
    opened.flushed(rows)
    opened.committed(rows)


def test_the_next_transaction_is_opened_before_more_rows_come(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    opened.ahead(never)
    assert client.calls == ["begin", "begin"]
    began = client.now
    opened.begin()
    assert (client.calls, client.now) == (["begin", "begin"], began)


def test_no_transaction_is_opened_directly_after_a_commit(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    committed = client.now
    opened.begin()
    assert client.now > committed


def test_rows_that_arrive_meanwhile_do_not_wait(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    opened.ahead(after(1))
    assert client.calls == ["begin"]
    client.answers_after = 1.0
    began = client.now
    opened.ahead(after(20))
    assert client.calls == ["begin", "begin"]
    assert client.now - began < 0.03


def test_a_silent_broker_is_not_awaited(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    client.answers_after = 60.0
    began = client.now
    opened.ahead(never)
    assert client.now - began < 0.1


def test_an_unused_transaction_is_ended_and_not_replaced(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    opened.ahead(never)
    opened.tend()
    assert client.calls == ["begin", "begin"]
    client.now += 3.0
    opened.tend()
    opened.tend()
    assert client.calls == ["begin", "begin", "commit"]
    opened.ahead(never)
    assert client.calls == ["begin", "begin", "commit"]
    opened.begin()
    assert client.calls == ["begin", "begin", "commit", "begin"]


def test_late_rows_get_a_new_transaction(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    opened.ahead(never)
    client.now += 3.0
    opened.begin()
    assert client.calls == ["begin", "begin", "commit", "begin"]


def test_nothing_is_opened_ahead_before_the_first_rows(client: Client) -> None:
    opened = made(client)
    opened.ahead(never)
    opened.end()
    assert client.calls == []


def test_nothing_is_opened_ahead_when_switched_off(client: Client) -> None:
    opened = made(client, ahead=False)
    carry(client, opened)
    opened.ahead(never)
    assert client.calls == ["begin"]


def test_a_previous_producers_transaction_is_not_ended_again(client: Client) -> None:
    opened = made(client)
    carry(client, opened)
    opened.ahead(never)
    opened.forget()
    opened.end()
    assert client.calls == ["begin", "begin"]
    opened.begin()
    assert client.calls == ["begin", "begin", "begin"]


def test_a_slower_broker_gets_a_longer_wait(client: Client) -> None:
    def waited() -> float:
        carry(client, opened)
        committed = client.now
        opened.begin()
        return client.now - committed

    opened = made(client)
    first = waited()
    opened.committed(1)
    client.answers_after = 0.025
    for _ in range(3):
        opened.ahead(never)
        opened.committed(1)
    assert waited() > 2 * first
