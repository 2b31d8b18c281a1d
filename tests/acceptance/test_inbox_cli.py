"""`thresher inbox`: the tables of an inbox, from a shell."""

import json
from typing import Any

import psycopg
import pytest

from tests.in_process import thresher as in_process
from thresher.db import TableName
from thresher.inbox import Inbox
from thresher.inbox.dead import InboxRecord, set_aside


@pytest.fixture
def asked(dsn: str) -> Any:
    def ask(*arguments: str, code: int = 0) -> str:
        done = in_process(["inbox", *arguments, "--ds", dsn])
        assert done.returncode == code, done.stderr.decode()
        return (done.stdout if code == 0 else done.stderr).decode()

    return ask


def test_an_operators_day_with_the_inbox(dsn: str, asked: Any) -> None:
    assert "no such table" in json.loads(in_process(["inbox", "check", "--ds", dsn, "--json"]).stdout)["findings"][0]
    assert asked("create") == '"thresher_inbox" created\n'
    assert asked("create") == '"thresher_inbox" is there already, and usable\n'
    assert asked("check") == '"thresher_inbox" can serve as an inbox\n'
    with psycopg.connect(dsn) as connection:
        with Inbox().once(connection, "m1", "billing"):
            pass
        record = InboxRecord(topic="t", partition=1, offset=2, key=b"k", value=b"v", headers=(("h", None),))
        name = TableName(table="thresher_inbox")
        set_aside(connection, name, record, context="billing", message_id="m1", reason="no\0such customer", attempts=5)
        connection.execute("UPDATE thresher_inbox SET received_time = now() - interval '3 days'")
    (message,) = json.loads(asked("dead", "list", "--json"))["messages"]
    assert (message["message_id"], message["topic"], message["reason"]) == ("m1", "t", "no\ufffdsuch customer")
    assert "t/1/2" in asked("dead", "list")
    assert json.loads(asked("dead", "list", "--context", "other", "--json")) == {"messages": [], "more": False}
    assert "no such messages: 99; nothing was changed" in asked("dead", "drop", str(message["id"]), "99", code=2)
    assert asked("dead", "drop", str(message["id"])) == "1 message was dropped\n"
    assert "no messages were named" in asked("dead", "drop", code=2)
    assert json.loads(asked("trim", "--older-than-days", "4", "--json")) == {"rows": 0}
    assert asked("trim", "--older-than-days", "2") == "1 row was removed\n"
    assert "CREATE TABLE" in in_process(["inbox", "print"]).stdout.decode()
