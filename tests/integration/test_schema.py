import threading
from typing import Any, LiteralString

import psycopg
import pytest

from thresher.db import TableName
from thresher.outbox import Message, Outbox, SchemaRefused, Shape, check_schema, create_schema
from thresher.outbox.shape import bucket_of

NAME = TableName(table="outbox")
# Copied from goharvest's README.
GOHARVEST = """
CREATE TABLE outbox (
  id                  BIGSERIAL PRIMARY KEY,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           VARCHAR(100) NOT NULL,
  kafka_value         VARCHAR(10000),
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values TEXT[] NOT NULL,
  leader_id           UUID
)
"""


@pytest.mark.parametrize("shape", Shape)
def test_a_created_table_passes_the_check(connection: psycopg.Connection[Any], shape: Shape) -> None:
    assert create_schema(connection, NAME, shape)
    assert check_schema(connection, NAME, shape).findings == ()


@pytest.mark.parametrize("shape", Shape)
def test_creating_twice_is_harmless(connection: psycopg.Connection[Any], shape: Shape) -> None:
    assert create_schema(connection, NAME, shape)
    assert not create_schema(connection, NAME, shape)


def test_goharvests_own_table_is_usable_and_only_its_vacuuming_differs(connection: psycopg.Connection[Any]) -> None:
    connection.execute(GOHARVEST)
    check = check_schema(connection, NAME, Shape.GOHARVEST)
    assert check.usable
    assert [finding.subject for finding in check.findings] == ["table"]
    Outbox(shape=Shape.GOHARVEST).stash(connection, Message(topic="t", key="k"))


def test_goharvests_table_with_wider_columns_is_usable(connection: psycopg.Connection[Any]) -> None:
    connection.execute(GOHARVEST)
    connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE TEXT, ADD extra TEXT")
    check = check_schema(connection, NAME, Shape.GOHARVEST)
    assert check.usable
    assert any(
        "its type is text, it should be character varying(10000)" in finding.detail for finding in check.findings
    )


def test_a_table_of_the_other_shape_is_refused(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME, Shape.GOHARVEST)
    with pytest.raises(SchemaRefused, match="column bucket: missing"):
        create_schema(connection, NAME, Shape.THRESHER)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER TABLE outbox DROP COLUMN kafka_partition", "column kafka_partition: missing; it should be integer"),
        (
            "ALTER TABLE outbox ALTER kafka_value TYPE TEXT USING ''",
            "column kafka_value: its type is text, it should be bytea",
        ),
        ("ALTER SEQUENCE outbox_id_seq CACHE 10", "sequence public.outbox_id_seq: CACHE 10"),
        ("ALTER SEQUENCE outbox_id_seq CYCLE", "sequence public.outbox_id_seq: CYCLE"),
        ("ALTER SEQUENCE outbox_id_seq INCREMENT -1 MINVALUE -10", "INCREMENT -1"),
        ("ALTER SEQUENCE outbox_id_seq INCREMENT 2", "INCREMENT 2"),
        ("ALTER TABLE outbox ALTER dispatched_time SET DEFAULT now()", "makes every new row one that was sent"),
        ("ALTER TABLE outbox SET UNLOGGED", "table: it is UNLOGGED"),
        ("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "row level security is on"),
        ("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "no primary key"),
        ("DROP INDEX outbox_bucket_id_idx", "none on (bucket, id)"),
        ("ALTER TABLE outbox ALTER id DROP IDENTITY", "column id: no default"),
        ("ALTER TABLE outbox ALTER create_time DROP DEFAULT", "column create_time: no default"),
        ("ALTER TABLE outbox ALTER create_time DROP NOT NULL", "column create_time: it allows NULL"),
        ("ALTER TABLE outbox ALTER COLUMN bucket SET EXPRESSION AS (7)", "its formula is"),
        ("ALTER TABLE outbox ADD tenant TEXT NOT NULL", "column tenant: an extra column that is NOT NULL"),
        ("DROP TABLE outbox; CREATE VIEW outbox AS SELECT 1 AS id", "it is a view; a plain table is needed"),
        ("CREATE RULE r AS ON INSERT TO outbox DO INSTEAD NOTHING", "rule r"),
        ("CREATE TABLE other (o BIGINT REFERENCES outbox)", "foreign key of public.other"),
        ("CREATE TABLE child () INHERITS (outbox)", "inherit"),
        ("ALTER SEQUENCE outbox_id_seq AS integer", "it ends at 2147483647"),
        ("ALTER SEQUENCE outbox_id_seq SET UNLOGGED", "it is UNLOGGED"),
        ("CREATE UNIQUE INDEX ON outbox (kafka_key)", "unique one on (kafka_key)"),
        ("ALTER TABLE outbox ALTER create_time SET DEFAULT '2020-01-01'", "is not the clock"),
        ("ALTER TABLE outbox ALTER kafka_topic TYPE VARCHAR(3)", "its type is character varying(3)"),
        ("CREATE DOMAIN must AS TEXT NOT NULL; ALTER TABLE outbox ADD tenant must", "column tenant: an extra column"),
        (
            "DROP INDEX outbox_bucket_id_idx; CREATE INDEX ON outbox USING brin (bucket, id)",
            "none on (bucket, id)",
        ),
        ("DROP TABLE outbox", "no such table"),
    ],
)
def test_a_table_that_breaks_a_guarantee_is_reported_precisely(
    connection: psycopg.Connection[Any], change: LiteralString, expected: str
) -> None:
    create_schema(connection, NAME)
    connection.execute(change)
    check = check_schema(connection, NAME)
    assert not check.usable
    assert expected in "\n".join(map(str, check.findings))


def test_a_sequence_not_owned_by_its_column_is_found(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME)
    connection.execute("CREATE SEQUENCE fast CACHE 100")
    connection.execute("ALTER TABLE outbox ALTER id DROP IDENTITY, ALTER id SET DEFAULT nextval('fast')")
    check = check_schema(connection, NAME)
    assert "sequence public.fast: CACHE 100" in "\n".join(map(str, check.findings))


def test_cached_sequence_values_really_invert_the_order(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        create_schema(one, NAME)
        one.execute("ALTER SEQUENCE outbox_id_seq CACHE 10")
        outbox = Outbox(require_transaction=False)
        for connection, value in ((one, "a"), (two, "b"), (one, "c")):
            outbox.stash(connection, Message(topic="t", key="k", value=value))
        ordered = one.execute("SELECT convert_from(kafka_value, 'UTF8') FROM outbox ORDER BY id").fetchall()
        assert [value for (value,) in ordered] == ["a", "c", "b"]


def test_a_dotted_name_gets_a_hint(connection: psycopg.Connection[Any]) -> None:
    (finding,) = check_schema(connection, TableName(table="billing.outbox")).findings
    assert "one name with a dot in it" in finding.detail


def test_services_that_start_together_create_one_table(dsn: str) -> None:
    made: list[bool] = []
    barrier = threading.Barrier(4)

    def start() -> None:
        with psycopg.connect(dsn) as connection:
            barrier.wait()
            made.append(create_schema(connection, NAME))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, False, False, True]


def test_the_head_of_a_bucket_comes_from_the_index(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME)
    Outbox().stash_many(connection, [Message(topic="t", key=str(n)) for n in range(5000)])
    connection.execute("ANALYZE outbox")
    query = "EXPLAIN SELECT id FROM outbox WHERE bucket = 7 AND dispatched_time IS NULL ORDER BY id LIMIT 10"
    plan = "\n".join(line for (line,) in connection.execute(query))
    assert "outbox_bucket_id_idx" in plan
    assert "Sort" not in plan


def test_output_settings_of_the_callers_session_do_not_matter(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE SCHEMA app")
    connection.execute("CREATE FUNCTION app.sha256(bytea) RETURNS bytea IMMUTABLE LANGUAGE sql AS 'SELECT $1'")
    connection.execute("SET search_path = app, pg_catalog, public")
    connection.execute("SET quote_all_identifiers = on")
    create_schema(connection, NAME)
    assert check_schema(connection, NAME).findings == ()
    assert connection.execute("SHOW quote_all_identifiers").fetchone() == ("on",)
    assert connection.execute("SHOW search_path").fetchone() == ("app, pg_catalog, public",)
    Outbox().stash(connection, Message(topic="t", key="k"))
    assert connection.execute("SELECT bucket FROM outbox").fetchone() == (bucket_of(b"k"),)


def test_a_column_of_a_domain_counts_as_its_base_type(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME)
    connection.execute("CREATE DOMAIN topic AS VARCHAR(249); ALTER TABLE outbox ALTER kafka_topic TYPE topic")
    assert check_schema(connection, NAME).findings == ()


def test_a_type_with_the_tables_name_is_explained(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TYPE outbox AS ENUM ('a')")
    with pytest.raises(SchemaRefused, match="a type has that name"):
        create_schema(connection, NAME)
