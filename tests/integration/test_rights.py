"""The rights that are printed are enough for a role that relays and one that writes, and less is refused with them."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place
from thresher.cli.schema import print_ddl
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.db.problem import DatabaseRefused
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.outbox import Message, Outbox, Shape
from thresher.relay.leader.workload import RelayWorkload
from thresher.spark.session.session import Session


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.fixture
def roles(place: Place) -> Iterator[dict[str, str]]:
    """Connection strings of two roles that may connect, and nothing else so far; there is no table either."""
    place.sql("DROP TABLE outbox")
    names = ("relay_small", "writer_small")
    for name in names:
        place.sql(f"DROP ROLE IF EXISTS {name}")
        place.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    yield {name: psycopg.conninfo.make_conninfo(place.dsn, user=name, password="right") for name in names}
    for name in names:
        place.sql(f"DROP OWNED BY {name}")
        place.sql(f"DROP ROLE {name}")


def test_roles_with_the_printed_grants_write_and_relay(
    place: Place, roles: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    print_ddl(relay=True)
    place.sql(capsys.readouterr().out)
    for statement in ("INSERT INTO outbox (kafka_topic) VALUES ('t')", "SELECT FROM outbox", "DELETE FROM outbox"):
        for dsn in roles.values():
            with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    messages = [Message(topic=place.topic, key="k", value=str(n)) for n in range(7)]
    with psycopg.connect(roles["writer_small"]) as connection:
        for stash_all in (place.outbox.stash_many, lambda at, all_: place.outbox.stash(at, all_[0])):
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                stash_all(connection, messages)
            assert "'thresher schema print --relay'" in refused.value.__notes__[0]
            connection.rollback()
    with pytest.raises(DatabaseRefused, match=r"permission denied.*; 'thresher schema print --relay' has"):
        RelayWorkload(place.settings(dsn=roles["relay_small"])).take_over(str(uuid.uuid4()), lambda: True)

    for table in ("outbox", "outbox_dead", "outbox_archive", "thresher_relay", "thresher_lease"):
        place.sql(f"DROP TABLE {table}")
    place.sql("DROP TABLE thresher_archive_batches")
    print_ddl(relay=True, relay_role="relay_small", writer_role="writer_small")
    place.sql(capsys.readouterr().out)
    with psycopg.connect(roles["writer_small"]) as connection:
        assert place.outbox.stash(connection, messages[0]) is not None
        place.outbox.stash_many(connection, messages[1:])
        place.outbox.stash(connection, Message(topic=place.topic, key="k", value=b"x" * 900_000))
    with psycopg.connect(roles["writer_small"]) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT kafka_value FROM outbox")
    with psycopg.connect(roles["relay_small"]) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        place.outbox.stash(connection, messages[0])
    kafka = {**place.settings().kafka, "message.max.bytes": 500_000}
    told = {"dsn": roles["relay_small"], "kafka": kafka, "delivery": "at-least-once", "settle": "stamp"}
    settings = place.settings(**told, archive_after_seconds=1, shards=1, producer_factory=PRODUCER)
    with Harvest(settings, policy=POLICY, election=ElectionSettings(lease_seconds=20.0)):
        assert [message.value() for message in place.read(7)] == [str(n).encode() for n in range(7)]
        eventually(lambda: place.sql("SELECT count(*) FROM outbox_archive") == [(7,)], RELAYED_SECONDS)
    assert place.sql("SELECT (SELECT count(*) FROM outbox_dead), (SELECT count(*) FROM outbox)") == [(1, 0)]


@pytest.mark.parametrize("shape", Shape)
def test_a_writer_needs_what_is_printed_in_every_shape(
    place: Place, roles: dict[str, str], shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    place.sql("CREATE SCHEMA shop")
    print_ddl("box", "shop", shape, writer_role="writer_small")
    place.sql(capsys.readouterr().out)
    outbox = Outbox("box", schema="shop", shape=shape)
    with psycopg.connect(roles["writer_small"]) as connection:
        assert outbox.stash(connection, Message(topic="t", key="k")) is not None
        assert outbox.stash_many(connection, [Message(topic="t", key="k")]) == 1
    assert place.sql(f"SELECT count(*) FROM {TableName(table='box', schema='shop')}") == [(2,)]
    with pytest.raises(InvalidInput, match="--relay"):
        print_ddl(relay_role="relay_small")
