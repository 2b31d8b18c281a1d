"""Connections of other libraries are refused. The error says which object to pass, and that object works."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from thresher.inbox import Inbox
from thresher.outbox import Message, Outbox, UnsupportedConnection, create_schema

MESSAGE = Message(topic="t", key="k", value="v")


@pytest.fixture
def outbox(dsn: str) -> Outbox:
    outbox = Outbox()
    with psycopg.connect(dsn) as connection:
        create_schema(connection, outbox.name)
    return outbox


@pytest.fixture
def engine(dsn: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    yield engine
    engine.dispose()


def stored(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        (found,) = connection.execute("SELECT count(*) FROM outbox").fetchone() or (None,)
    return int(found or 0)


def advice(connection: Any) -> str:
    """Return the error's text, which is the same from every method that takes a connection."""
    with pytest.raises(UnsupportedConnection) as refused:
        Outbox().stash(connection, MESSAGE)
    with pytest.raises(UnsupportedConnection) as refused_many:
        Outbox().stash_many(connection, [MESSAGE])
    with pytest.raises(UnsupportedConnection) as refused_once, Inbox().once(connection, "m"):
        pass
    assert str(refused.value) == str(refused_many.value) == str(refused_once.value)
    return str(refused.value)


def advised(given: Any, **names: Any) -> Any:
    """Return the object that the error says to pass, by evaluating its expression."""
    found = re.search(r"pass (\S+driver_connection)", advice(given))
    assert found is not None, advice(given)
    return eval(found[1], names)  # noqa: S307 - of our own text


@pytest.mark.parametrize("made", [Session, lambda engine: scoped_session(sessionmaker(engine))])
def test_a_sqlalchemy_session_commits_or_rolls_back_stashed_messages(
    dsn: str, outbox: Outbox, engine: sqlalchemy.Engine, made: Callable[[Any], Any]
) -> None:
    session = made(engine)
    for end, expected in ((session.rollback, 0), (session.commit, 1)):
        session.execute(sqlalchemy.text("SELECT 1"))
        outbox.stash(advised(session, session=session), MESSAGE)
        end()
        assert stored(dsn) == expected
    # The message may be the only write of the transaction.
    outbox.stash_many(advised(session, session=session), [MESSAGE])
    session.commit()
    assert stored(dsn) == 2
    session.close()


def test_a_sqlalchemy_connection_commits_or_rolls_back_stashed_messages(
    dsn: str, outbox: Outbox, engine: sqlalchemy.Engine
) -> None:
    with engine.connect() as connection:
        outbox.stash(advised(connection, connection=connection), MESSAGE)
        assert "pass its driver_connection" in advice(connection.connection)
        connection.rollback()
    assert stored(dsn) == 0
    assert "with engine.begin() as connection:" in advice(engine)
    with engine.begin() as connection:
        outbox.stash(advised(engine, connection=connection), MESSAGE)
    assert stored(dsn) == 1


@contextmanager
def django_connection(dsn: str) -> Iterator[Any]:
    from django.conf import settings
    from django.db import connection, connections

    given = conninfo_to_dict(dsn)
    place = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {key: str(given.get(name) or "") for key, name in place.items()}
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}})
    yield connection
    connections.close_all()


def test_a_django_connection_commits_or_rolls_back_stashed_messages(dsn: str, outbox: Outbox) -> None:
    with django_connection(dsn) as connection:
        from django.db import connections, transaction

        for given in (connection, connections["default"]):
            for part in ("transaction.atomic()", "connection.ensure_connection()", "pass connection.connection"):
                assert part in advice(given)
        with transaction.atomic():
            connection.ensure_connection()
            outbox.stash(connection.connection, MESSAGE)
            transaction.set_rollback(True)
        assert stored(dsn) == 0
        with transaction.atomic():
            connection.ensure_connection()
            outbox.stash(connection.connection, MESSAGE)
        assert stored(dsn) == 1


def test_cursors_and_async_connections_get_their_own_advice(dsn: str, outbox: Outbox) -> None:
    with psycopg.connect(dsn) as connection:
        assert "cursor.connection" in advice(connection.cursor())
        outbox.stash(connection.cursor().connection, MESSAGE)
    assert stored(dsn) == 1

    async def of_async() -> str:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            return advice(connection)

    assert "asyncio.to_thread" in asyncio.run(of_async())


def test_an_object_that_is_no_connection_is_named() -> None:
    assert advice("host=db") == "a psycopg Connection is needed, not str"
    assert advice(None) == (
        "a psycopg Connection is needed, not NoneType: pass the connection whose transaction this belongs to, from "
        "psycopg.connect(…)"
    )
