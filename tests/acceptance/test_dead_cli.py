"""`thresher dead` on a real database: tables at 80 columns, known kinds only, a question before rows are dropped."""

import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.in_process import thresher_text
from thresher.db import TableName
from thresher.outbox import Shape, create_schema
from thresher.relay.names import companions

ROWS = [
    (1, "orders", b"customer-1", "too-large", "the record has 2,000,111 bytes, and the topic takes 1,048,588 at most"),
    (2, "orders.returned", None, "no-topic", "orders.returned: this server does not host this topic-partition"),
    (3, "t" * 60, b"0b9c6fa2-4a0a-4b43-8a4f-0d7cf80f6a55", "malformed", "its key has no end"),
]


@pytest.fixture
def outbox(connection: psycopg.Connection[Any], dsn: str) -> str:
    """A database with three dead rows."""
    name = TableName(table="outbox")
    create_schema(connection, name)
    for statement in companions(name, Shape.THRESHER):
        connection.execute(statement.encode())
    for id_, topic, key, kind, reason in ROWS:
        connection.execute(
            "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
            "kafka_header_values, kind, reason, attempts, blocking) "
            "VALUES (%s, now(), %s, %s, 'v', '{}', '{}', %s, %s, 1, false)",
            [id_, topic, None if key is None else key.decode(), kind, reason],
        )
    connection.commit()
    return dsn


def dead(dsn: str | None, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return thresher_text("dead", *arguments, *(["--ds", dsn] if dsn else []), columns=80, **options)


def answered(dsn: str, answer: bytes, *chosen: str) -> "subprocess.CompletedProcess[str]":
    """Drop rows on a terminal, and answer the question."""
    return dead(dsn, "drop", *(chosen or ["--all"]), given=answer, terminal=True)


def left(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM outbox_dead").fetchone()
        return int(row[0]) if row else 0


def test_a_list_at_80_columns_has_one_line_a_row(outbox: str) -> None:
    answer = dead(outbox, "list")
    assert (answer.returncode, max(map(len, answer.stdout.splitlines())) <= 80) == (0, True), answer.stdout
    lines = [line for line in answer.stdout.splitlines() if line.startswith("│")]
    assert [line.split()[1] for line in lines] == ["1", "2", "3"]
    assert "too-large" in lines[0]
    assert "customer-1" in lines[0]
    assert "orders.returned" in lines[1]
    assert "reason" in answer.stderr
    assert "'thresher dead show ID' shows them" in answer.stderr


@pytest.mark.parametrize("command", ["list", "replay", "drop"])
def test_an_unknown_kind_is_refused_with_the_known_kinds(outbox: str, command: str) -> None:
    answer = dead(outbox, command, "--kind", "nonsense")
    assert (answer.returncode, answer.stdout, left(outbox)) == (2, "", 3)
    assert "--kind 'nonsense': there is no such kind" in answer.stderr
    assert "malformed, too-large, rejected, no-topic, no-partition, not-authorised, transform" in answer.stderr


def test_rows_of_an_outbox_without_a_table_go_to_the_log(outbox: str) -> None:
    with psycopg.connect(outbox) as connection:
        connection.execute("DROP TABLE outbox")
    answer = dead(outbox, "replay", "--all")
    said = " ".join(answer.stderr.split())
    assert (answer.returncode, left(outbox)) == (2, 3)
    assert 'there is no outbox table "public"."outbox"' in said
    assert "use --to-log" in said


def test_dropping_all_needs_a_yes(outbox: str) -> None:
    unasked = dead(outbox, "drop", "--all")
    assert (unasked.returncode, "add --yes" in unasked.stderr, left(outbox)) == (2, True, 3)
    refused = answered(outbox, b"n\n")
    assert (refused.returncode, "nothing was changed" in refused.stderr, left(outbox)) == (1, True, 3)
    assert 'drop 3 rows of "outbox" that were never sent, for good?' in refused.stderr
    agreed = answered(outbox, b"y\n")
    assert (agreed.returncode, agreed.stdout, left(outbox)) == (0, "3 rows were dropped\n", 0)


@pytest.mark.parametrize("chosen", [("--topic", "orders"), ("--kind", "too-large")])
def test_dropping_by_topic_or_kind_needs_a_yes(outbox: str, chosen: tuple[str, str]) -> None:
    unasked = dead(outbox, "drop", *chosen)
    assert (unasked.returncode, f"{chosen[0]} asks first" in unasked.stderr, left(outbox)) == (2, True, 3)
    refused = answered(outbox, b"n\n", *chosen)
    assert (refused.returncode, left(outbox)) == (1, 3)
    assert 'drop 1 row of "outbox" that was never sent, for good?' in refused.stderr
    agreed = answered(outbox, b"y\n", *chosen)
    assert (agreed.returncode, agreed.stdout, left(outbox)) == (0, "1 row was dropped\n", 2)


def test_rows_named_by_id_are_dropped_without_a_question(outbox: str) -> None:
    answer = dead(outbox, "drop", "1", "2")
    assert (answer.returncode, answer.stdout, left(outbox)) == (0, "2 rows were dropped\n", 1)


@pytest.mark.parametrize("more", [{"shards": 2}, {"keep_seconds": 5}], ids=["relay", "tail"])
def test_the_file_of_a_relay_or_tail_names_the_outbox(outbox: str, more: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    keys = {"name": "it", "data_source": outbox, "kafka": {"bootstrap.servers": "localhost:1"}, **more}
    file.write_text(yaml.safe_dump(keys))
    answer = dead(None, "list", "-c", str(file), "--json")
    assert [row["id"] for row in json.loads(answer.stdout)["rows"]] == [1, 2, 3]
    other = dead(None, "list", "-c", str(file), "--outbox", "other")
    assert (other.returncode, "other_dead" in other.stderr) == (2, True)
    file.write_text(yaml.safe_dump({**keys, "outbox": "other", "nonsense": 1}))
    refused = dead(None, "list", "-c", str(file))
    assert (refused.returncode, "nonsense: there is no such key" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize("words", [["drop", "--all", "--yes"], ["replay", "--all"], ["drop", "1"], ["list"]])
def test_a_database_that_contradicts_the_file_is_left_alone(outbox: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    other = "postgresql://me:hunter2@db.elsewhere/shop"
    file.write_text(yaml.safe_dump({"name": "r", "data_source": other, "kafka": {"bootstrap.servers": "k:1"}}))
    here = psycopg.conninfo.conninfo_to_dict(outbox)["dbname"]
    for variables in ({}, {"THRESHER_CONFIG": str(file)}):
        named = [] if variables else ["-c", str(file)]
        refused = dead(None, *words, *named, THRESHER_DS=outbox, **variables)
        assert (refused.returncode, left(outbox), "hunter2" in refused.stderr) == (2, 3, False), refused.stderr
        assert "the file names db.elsewhere:5432/shop, and the environment names " in refused.stderr
        assert f"/{here}: unset THRESHER_DS" in refused.stderr
    # A flag chooses, and the command says which database it is.
    chosen = dead(outbox, "list", "-c", str(file))
    assert (chosen.returncode, f"/{here}\n" in chosen.stderr) == (0, True), chosen.stderr


def test_an_address_of_the_environment_deletes_nothing(outbox: str, tmp_path: Path) -> None:
    file, here = tmp_path / "relay.yaml", psycopg.conninfo.conninfo_to_dict(outbox)
    elsewhere = psycopg.conninfo.make_conninfo(outbox, host="db.elsewhere")
    file.write_text(yaml.safe_dump({"name": "r", "data_source": elsewhere, "kafka": {"bootstrap.servers": "k:1"}}))
    for named in (dead(None, "drop", "--all", "--yes", "-c", str(file), PGHOSTADDR=str(here["host"])),
                  dead(elsewhere, "drop", "--all", "--yes", PGHOSTADDR=str(here["host"]))):  # fmt: skip
        assert (named.returncode, left(outbox), "PGHOSTADDR" in named.stderr) == (2, 3, True), named.stderr


def test_a_long_value_is_cut_except_in_json(outbox: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "UPDATE outbox_dead SET kafka_value = convert_to(repeat('v', 2000000), 'UTF8'), "
        "kafka_header_keys = '{a,b}', kafka_header_values = '{x}' WHERE id = 1"
    )
    connection.execute("UPDATE outbox_dead SET kafka_header_keys = '{a}', kafka_header_values = '{x,y}' WHERE id = 2")
    connection.commit()
    shown = dead(outbox, "show", "1").stdout
    assert len(shown) < 3000
    assert "vvv… (2,000,000 characters: --json shows all)" in shown
    assert "names_without_value ['b']" in shown
    whole = json.loads(dead(outbox, "show", "1", "--json").stdout)
    assert (len(whole["value"]), whole["headers"], whole["names_without_value"]) == (2_000_000, [["a", "x"]], ["b"])
    other = json.loads(dead(outbox, "show", "2", "--json").stdout)
    assert (other["headers"], other["values_without_name"]) == ([["a", "x"]], ["y"])


def test_no_byte_of_a_row_controls_the_terminal(outbox: str, connection: psycopg.Connection[Any]) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e\r"
    connection.execute(
        "UPDATE outbox_dead SET kafka_topic = %(all)s::text, kafka_key = convert_to(%(all)s::text, 'UTF8'), "
        "kind = %(all)s::text, reason = %(all)s::text, kafka_value = convert_to(%(lines)s::text, 'UTF8'), "
        "kafka_header_keys = ARRAY[%(all)s::text], kafka_header_values = ARRAY[convert_to(%(all)s::text, 'UTF8')]",
        {"all": hostile, "lines": f"{hostile}\nreason       sent"},
    )
    connection.commit()
    for words in (["show", "1"], ["list"], ["list", "--topic", hostile, "--json"], ["show", "1", "--json"]):
        answer = dead(outbox, *words)
        assert answer.returncode == 0, answer.stderr
        printed = (answer.stdout + answer.stderr).replace("\n", "")
        assert printed.isprintable(), repr(printed)
    # A line of a value does not pass for a field.
    assert "\nreason       sent" not in dead(outbox, "show", "1").stdout
    assert json.loads(dead(outbox, "show", "1", "--json").stdout)["key"] == hostile


def test_a_script_drops_all_with_yes(outbox: str) -> None:
    answer = dead(outbox, "drop", "--all", "--yes")
    assert (answer.returncode, answer.stdout, left(outbox)) == (0, "3 rows were dropped\n", 0)


def test_missing_rights_and_wrong_passwords_exit_4_with_a_hint(
    outbox: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("DROP ROLE IF EXISTS dead_reader")
    connection.execute("CREATE ROLE dead_reader LOGIN PASSWORD 'x'")
    connection.commit()
    plain = psycopg.conninfo.make_conninfo(outbox, user="dead_reader", password="x")
    try:
        answer = dead(plain, "list")
        told = " ".join(answer.stderr.split())
        assert (answer.returncode, "thresher schema print --relay" in told) == (4, True), told
        answer = dead(psycopg.conninfo.make_conninfo(plain, password="wrong"), "list")
        assert (answer.returncode, "password" in answer.stderr) == (4, True), answer.stderr
    finally:
        connection.execute("DROP ROLE dead_reader")
        connection.commit()


@pytest.mark.parametrize("named", [["1"], ["--topic", "orders"], ["--kind", "no-topic"]])
@pytest.mark.parametrize("command", ["drop", "replay"])
def test_all_stands_alone(outbox: str, command: str, named: list[str]) -> None:
    answer = dead(outbox, command, "--all", *named, *(["--yes"] if command == "drop" else []))
    assert (answer.returncode, "give it alone" in answer.stderr) == (2, True), answer.stderr
    assert left(outbox) == len(ROWS)
