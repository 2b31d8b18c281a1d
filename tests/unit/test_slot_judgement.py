"""Problems that keep a tail from reading the WAL, and their remedies."""

from dataclasses import replace

import pytest

from thresher.core.errors import InvalidInput
from thresher.db.log_emitter import LogEmitter
from thresher.db.log_slots import LogServer, LogSlot, Publication
from thresher.db.names import TableName
from thresher.db.postgres.replication.connection import stream_problem
from thresher.db.problem import DatabaseRefused
from thresher.outbox import Limits, Outbox, Shape
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.slot import (
    emitter_problems,
    free_slot,
    publication_problems,
    server_problems,
    slot_problems,
    slot_warnings,
)

SERVER = LogServer(version=180_000, wal_level="logical", database="app", user='o"k', may_replicate=True)
SLOT = LogSlot(
    name="s", plugin="pgoutput", database="app", active_pid=7, wal_status="reserved", invalidation=None, confirmed=256,
    restart=16, retained_bytes=100, safe_bytes=None, failover=True,
)  # fmt: skip
TABLE = TableName(table="outbox", schema="public")
EMITTER = LogEmitter(
    function='"outbox_emit"', keys='"outbox_keys"', exists=True, definer=True, owner="app", public_executes=False,
    public_reads_keys=False, keys_readable=True, owner_emits=True, server_open=False, user="oncall",
    server_functions=tuple(f"pg_logical_emit_message(boolean,text,{each},boolean)" for each in ("bytea", "text")),
)  # fmt: skip
TABLED, TABLELESS = TableSource(table=TABLE), LogSource(outbox=TABLE)


def test_a_usable_server_has_no_problems() -> None:
    assert server_problems(SERVER) == []
    assert slot_problems(SERVER, "s", SLOT, TABLED) == []
    assert slot_warnings(SERVER, SLOT) == []


def test_a_missing_logical_wal_level_comes_with_the_statement() -> None:
    (problem,) = server_problems(replace(SERVER, wal_level="replica"))
    assert "wal_level is replica" in problem.detail
    assert "ALTER SYSTEM SET wal_level = 'logical'" in problem.mend


def test_a_missing_privilege_comes_with_the_statement() -> None:
    (problem,) = server_problems(replace(SERVER, may_replicate=False))
    assert problem.mend == 'ALTER ROLE "o""k" REPLICATION'
    assert str(problem).endswith(
        """. If this is the tail's role: ALTER ROLE "o""k" REPLICATION. Otherwise run this as the tail's role"""
    )


def test_keys_are_granted_only_to_the_tails_role() -> None:
    (problem,) = emitter_problems(replace(EMITTER, keys_readable=False), TABLELESS)
    assert "If this is the tail's role: GRANT SELECT ON" in str(problem)
    assert str(problem).endswith("Otherwise run this as the tail's role")


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (LogSource(outbox=TABLE, placed=TABLE), "'thresher tail slot key --outbox outbox --schema public' makes both"),
        (
            LogSource(outbox=TableName(table="a b"), placed=TableName(table="a b", schema="shop")),
            """'thresher tail slot key --outbox 'a b'' makes both, with a search_path that leads to "shop\"""",
        ),
    ],
)
def test_the_command_for_a_missing_function_names_its_schema(source: LogSource, command: str) -> None:
    (problem,) = emitter_problems(replace(EMITTER, exists=False), source)
    assert problem.mend.startswith(command)


def test_only_the_function_in_use_is_granted_to_the_owner() -> None:
    (problem,) = emitter_problems(replace(EMITTER, owner_emits=False), TABLELESS)
    grant = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean,text,bytea,boolean)"
    assert problem.mend == f'{grant} TO "app"'
    (problem,) = emitter_problems(replace(EMITTER, server_open=True), TABLELESS)
    assert problem.mend.count("pg_logical_emit_message(boolean,text,text,boolean)") == 1
    assert problem.mend.endswith(f'FROM PUBLIC; {grant} TO "app"')


def test_a_server_without_messages_in_its_log_is_refused() -> None:
    (problem,) = server_problems(replace(SERVER, version=130_012))
    assert "Postgres 13" in problem.detail
    assert "14 or later" in problem.mend


@pytest.mark.parametrize(
    "found",
    [
        None,
        Publication(name="p", inserts=True, includes_table=False, row_filter=None),
        Publication(name="p", inserts=False, includes_table=True, row_filter=None),
        Publication(name="p", inserts=True, includes_table=True, row_filter="(id > 5)"),
    ],
)
def test_a_publication_that_leaves_rows_out_has_lost_them(found: Publication | None) -> None:
    (problem,) = publication_problems("p", found, TABLE)
    assert "are never sent" in problem.detail


def test_a_slot_reader_of_another_role_is_awaited(caplog: pytest.LogCaptureFixture) -> None:
    class Foreign:
        def free(self, _: str) -> None:
            raise DatabaseRefused("permission denied to terminate process")

    free_slot(Foreign(), "s")  # type: ignore[arg-type]
    assert "was not ended" in caplog.text


@pytest.mark.parametrize(("version", "more"), [(160_000, ""), (170_000, ", false, false, true")])
def test_a_missing_slot_is_made_as_the_server_can(version: int, more: str) -> None:
    (problem,) = slot_problems(replace(SERVER, version=version), "s'x", None, TABLED)
    assert f"SELECT pg_create_logical_replication_slot('s''x', 'pgoutput'{more})" in problem.mend


@pytest.mark.parametrize(
    "other", [replace(SLOT, plugin="wal2json"), replace(SLOT, plugin=None, database=None), replace(SLOT, database="b")]
)
def test_a_slot_of_another_plugin_or_database_is_refused(other: LogSlot) -> None:
    (problem,) = slot_problems(SERVER, "s", other, TABLED)
    assert "and not one of pgoutput in app" in problem.detail


@pytest.mark.parametrize(
    ("source", "left"), [(TABLED, "rows that are still in the table"), (TABLELESS, "nothing is left to read")]
)
@pytest.mark.parametrize("lost", [replace(SLOT, wal_status="lost"), replace(SLOT, invalidation="idle_timeout")])
def test_a_lost_slot_is_reported_with_position_and_remedy(source: Source, left: str, lost: LogSlot) -> None:
    (problem,) = slot_problems(SERVER, "s", lost, source)
    assert "what was committed after 0/100 may be missing" in problem.detail
    assert left in problem.detail
    assert "thresher adopt NAME" in problem.mend
    assert problem.mend.startswith("SELECT pg_drop_replication_slot('s'); SELECT pg_create_logical_replication_slot(")


def test_settings_that_may_break_later_are_warned_about() -> None:
    found = slot_warnings(SERVER, replace(SLOT, wal_status="unreserved", active_pid=None, failover=False))
    assert [warning.split(":")[0] for warning in found] == [
        "the server may remove WAL that the slot needs at the next checkpoint",
        "nobody reads the slot",
        "the slot was made without failover",
    ]


def test_a_publication_is_judged_by_the_table() -> None:
    good = Publication(name="p", inserts=True, includes_table=True, row_filter=None)
    assert publication_problems("p", good, TABLE) == []
    bad = Publication(name="p", inserts=False, includes_table=False, row_filter="(id > 5)")
    assert publication_problems("p", bad, None) == []
    assert [problem.mend for problem in publication_problems("p", bad, TABLE)] == [
        'ALTER PUBLICATION "p" ADD TABLE "public"."outbox"',
        "ALTER PUBLICATION \"p\" SET (publish = 'insert')",
        'ALTER PUBLICATION "p" SET TABLE "public"."outbox"',
    ]
    assert [problem.mend for problem in publication_problems("p", None, None)] == [
        "CREATE PUBLICATION \"p\" WITH (publish = 'insert')"
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"via": "kafka"}, "'table' or 'log' is needed"),
        ({"slot": "s"}, "only a tail's outbox has one"),
        ({"via": "log", "keep": False}, "there is no row"),
        ({"via": "log", "shape": Shape.GOHARVEST}, "there is no table"),
        ({"via": "log", "limits": Limits(outstanding=5)}, "no rows wait in a table"),
        ({"keep": False, "limits": Limits(outstanding=5)}, "no rows wait in a table"),
        ({"keep": False, "require_transaction": False}, "in autocommit there would be two"),
        ({"via": "log", "table": "a.b"}, "dot"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Outbox(**options)  # type: ignore[arg-type]


def test_a_publication_missing_in_the_log_is_refused() -> None:
    problem = stream_problem("42704", 'publication "p" does not exist')
    assert isinstance(problem, DatabaseRefused)
    assert "thresher tail slot create" in str(problem)
