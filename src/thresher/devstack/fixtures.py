"""Pytest fixtures for the real stack: one stack for the whole run, a new database and topic prefix for each test.

A missing server is an error, never a skip. Use with `pytest_plugins = ["thresher.devstack.fixtures"]`. If
`THRESHER_TEST_STACK` names the file of a shared stack (see `shared`), that stack is wiped and used instead.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from thresher.devstack.broker import KafkaOptions
from thresher.devstack.shared import RUN, running_stack
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One Postgres and one Kafka broker for the whole run. Missing topics are not created automatically."""
    with running_stack(KafkaOptions(properties={"auto.create.topics.enable": "false"})) as running:
        yield running


@pytest.fixture
def dsn(stack: Stack) -> Iterator[str]:
    """The connection string of an empty database that nobody else uses."""
    name = f"test_{next(_numbers)}"
    yield stack.postgres.create_database(name)
    stack.postgres.drop_database(name)


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the test's own database, not in autocommit, closed without a commit at the end."""
    with psycopg.connect(dsn) as opened:
        yield opened
        opened.rollback()


@pytest.fixture
def topic_prefix(stack: Stack) -> Iterator[str]:
    """A prefix for topic names that nobody else uses; topics under it are deleted at the end."""
    prefix = f"test-{RUN}{next(_numbers)}-"
    yield prefix
    admin = Admin(stack.kafka.bootstrap)
    for name in admin.names(prefix):
        try:
            admin.delete_topics([name])
        except KafkaException as error:
            # The list may still name a topic that the test has just deleted.
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
