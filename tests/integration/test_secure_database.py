"""TLS to Postgres, with the server's certificate and name verified."""

import psycopg
import pytest

from tests.relay.relaying import Place
from tests.relay.tls_postgres import AUTHORITY, tls_postgres
from thresher.devstack.stack import Stack
from thresher.outbox import Message


def test_a_relays_sessions_are_encrypted_and_verified(stack: Stack, dsn: str, topic_prefix: str) -> None:
    at = Place(stack, dsn, topic_prefix)
    with tls_postgres(dsn) as server:
        verified = server.dsn(sslmode="verify-full", sslrootcert=str(AUTHORITY))
        at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(50)))
        with at.relaying(dsn=verified) as relay:
            assert len(at.read(50)) == 50
            relay.until(lambda: at.pending() == 0)
        assert server.plain == 0
        assert server.encrypted > 3, "control, probe and shards"
        for wrong in ({"host": "127.0.0.1"}, {"sslrootcert": "/etc/hosts"}):
            with pytest.raises(psycopg.OperationalError, match="certificate"):
                psycopg.connect(psycopg.conninfo.make_conninfo(verified, **wrong))
