"""The error text for a missing outbox."""

import pytest

from thresher.db.names import TableName
from thresher.db.postgres.refusal import no_such_table


@pytest.mark.parametrize(
    ("table", "command"),
    [
        (TableName(table="parcels"), "'thresher schema create --outbox parcels' makes one"),
        (TableName(table="a b", schema="shop"), "--outbox 'a b' --schema shop' makes one"),
        (TableName(table="shop.outbox"), "makes one, and a table in a schema is named by both --outbox and --schema"),
    ],
)
def test_the_suggested_command_creates_the_missing_table(table: TableName, command: str) -> None:
    assert command in no_such_table(table)
