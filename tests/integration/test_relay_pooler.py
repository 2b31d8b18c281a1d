"""A relay behind a pooler in transaction mode."""

import psycopg
import pytest

from tests.relay.pooler import Pooler
from tests.relay.relaying import Place
from thresher.db.problem import DatabaseRefused
from thresher.devstack.stack import Stack
from thresher.relay.leader.take_over import take_over


@pytest.mark.parametrize(("sessions", "turns"), [(1, False), (3, False), (3, True)])
def test_a_pooler_in_transaction_mode_is_refused_by_name(
    stack: Stack, dsn: str, topic_prefix: str, sessions: int, turns: bool
) -> None:
    at = Place(stack, dsn, topic_prefix)
    with Pooler(dsn, sessions=sessions, turns=turns) as pooler:
        # An application can use the pooler.
        with psycopg.connect(pooler.dsn) as connection:
            assert connection.execute("SELECT %s + 1", [1]).fetchone() == (2,)
        with pytest.raises(DatabaseRefused, match="pooler in transaction mode") as refused:
            take_over(at.settings(dsn=pooler.dsn))
    assert refused.value.exit_code == 4
    # The relay has written nothing.
    assert at.sql("SELECT to_regclass('thresher_relay')") == [(None,)]
