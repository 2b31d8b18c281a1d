"""A stack that one process owns and other processes use, one after another, as if each had started it.

1. The owner starts a stack, and writes its addresses to a file (`describe`).
2. A user wipes it first: databases, roles, topics, ACLs, and groups without members. Then it is as empty as a new one.
   Each user has names of its own (`RUN`), since a group may still have a member of an earlier user.
3. A user never starts, stops or signals the servers: an attempt ends the run.

The next user wipes the data of a killed one. The stack ends with its owner. Users are runs of pytest, which find the
file by `THRESHER_TEST_STACK`.
"""

import contextlib
import os
import pickle
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from psycopg import sql

from thresher.devstack.broker import KafkaOptions
from thresher.devstack.server import Server
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

DESCRIPTION = "THRESHER_TEST_STACK"
_WIPE_SECONDS = 60.0
# Part of every name that fixtures make. On a shared stack, it differs for each run.
RUN = f"{secrets.token_hex(3)}-" if os.environ.get(DESCRIPTION) else ""
# Pytest's exit code for an internal error, as opposed to failed tests.
_MISUSED = 3


@contextlib.contextmanager
def running_stack(kafka: KafkaOptions) -> Iterator[Stack]:
    """Give a stack with these options for the whole run, or the shared one, whose owner has chosen the same options."""
    description = os.environ.get(DESCRIPTION)
    if description:
        yield attach(Path(description))
    else:
        with Stack(kafka=kafka) as running:
            yield running


def describe(stack: Stack, file: Path) -> None:
    """Write the addresses of a running stack to a file, for `attach`. The file holds the database's password."""
    postgres, kafka = stack.postgres, stack.kafka
    described = {
        "directory": stack.directory,
        "postgres": (postgres.port, postgres._password),
        "options": _plain(kafka.options),
        "kafka": (kafka.port_by_listener, kafka.certificate),
    }
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        pickle.dump(described, opened)


def attach(file: Path) -> Stack:
    """Return a stack that another process runs, after wiping it."""
    described = pickle.loads(file.read_bytes())  # noqa: S301 - our own owner wrote it, readable by us alone
    stack = Stack(described["directory"], kafka=KafkaOptions(**described["options"]))
    stack.postgres.port, stack.postgres._password = described["postgres"]
    stack.kafka.port_by_listener, stack.kafka.certificate = described["kafka"]
    stack.postgres.server = _NotOurs(stack.postgres.server)
    stack.kafka.nodes = {node: _NotOurs(server) for node, server in stack.kafka.nodes.items()}
    _wipe_postgres(stack.postgres.dsn())
    _wipe_kafka(stack.kafka.bootstrap)
    return stack


class _NotOurs(Server):
    """A server that another process runs: its files can be read, but its process must not be touched."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.name, server.directory, stop_signal=server._stop_signal, end_signal=server._end_signal)

    @property
    def pid(self) -> int:
        self._refuse()

    def start(self, *_given: Any) -> None:
        self._refuse()

    def send(self, *_given: Any) -> None:
        self._refuse()

    def _finish(self, *_given: Any) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        # End the whole run: a failed test would look like a defect that the test has found.
        pytest.exit(f"{self.name} is shared: this test needs servers of its own", returncode=_MISUSED)


def _plain(options: KafkaOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in KafkaOptions.__slots__}


def _wipe_postgres(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'")
        for (name,) in found.fetchall():
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        found = connection.execute("SELECT rolname FROM pg_roles WHERE rolname <> 'postgres' AND rolname !~ '^pg_'")
        for (name,) in found.fetchall():
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def _wipe_kafka(bootstrap: str) -> None:
    admin = Admin(bootstrap)
    if names := [name for name in admin.names() if not name.startswith("__")]:
        admin.delete_topics(names)
    client = AdminClient({"bootstrap.servers": bootstrap})
    listed = client.list_consumer_groups(request_timeout=_WIPE_SECONDS).result(_WIPE_SECONDS)
    if groups := [group.group_id for group in listed.valid]:
        # A killed member stays in its group until its session times out, and the group cannot be deleted.
        with contextlib.suppress(KafkaException):
            _done(client.delete_consumer_groups(groups, request_timeout=_WIPE_SECONDS))
    any_text: Any = None
    anything = AclBindingFilter(
        ResourceType.ANY,
        any_text,
        ResourcePatternType.ANY,
        any_text,
        any_text,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        _done(client.delete_acls([anything], request_timeout=_WIPE_SECONDS))
    except KafkaException as error:
        # A broker without users has no authorizer, and so no ACLs.
        if error.args[0].code() != KafkaError.SECURITY_DISABLED:
            raise


def _done(futures: Mapping[Any, "Future[Any]"]) -> None:
    for future in futures.values():
        future.result(_WIPE_SECONDS)
