"""The judgement of a schema check, on invented relations. The integration tests check how the catalog is read."""

from dataclasses import replace

import pytest

from thresher.db import TableName
from thresher.db.catalog import Column, Index, Relation, Sequence
from thresher.outbox import Shape
from thresher.outbox.schema import EXPECTED_COLUMNS, PENDING, judge

NAME = TableName(table="outbox")
GOOD = Relation(
    columns=EXPECTED_COLUMNS[Shape.THRESHER],
    indexes=(Index(columns=("id",), unique=True), Index(columns=("bucket", "id"), predicate=PENDING)),
    sequences=(Sequence(name="s"),),
    options=("autovacuum_vacuum_scale_factor=0",),
)


def with_column(name: str, column: Column | None) -> Relation:
    columns = {**GOOD.columns}
    if column is None:
        del columns[name]
    else:
        columns[name] = column
    return replace(GOOD, columns=columns)


def test_the_shape_itself_has_no_findings() -> None:
    assert list(judge(GOOD, Shape.THRESHER, NAME)) == []


@pytest.mark.parametrize(
    ("relation", "subject", "detail"),
    [
        (replace(GOOD, encoding="SQL_ASCII"), "database", "its encoding is SQL_ASCII"),
        (with_column("kafka_key", None), "column kafka_key", "missing; it should be bytea"),
        (with_column("kafka_key", Column(type="text")), "column kafka_key", "its type is text, it should be bytea"),
        (with_column("kafka_key", Column(type="bytea", not_null=True)), "column kafka_key", "NOT NULL"),
        (with_column("kafka_topic", Column(type="character varying(249)")), "column kafka_topic", "allows NULL"),
        (
            with_column("create_time", Column(type="timestamp with time zone", not_null=True)),
            "create_time",
            "no default",
        ),
        (with_column("bucket", Column(type="smallint", not_null=True)), "column bucket", "GENERATED ALWAYS"),
        (
            with_column("bucket", Column(type="smallint", not_null=True, generated=True, default="(id & 63)")),
            "column bucket",
            "its formula is (id & 63)",
        ),
        (with_column("extra", Column(type="text", not_null=True)), "column extra", "NOT NULL without a default"),
        (with_column("id", Column(type="bigint", not_null=True)), "column id", "no default"),
        (replace(GOOD, sequences=()), "column id", "is not the next of a sequence"),
        (replace(GOOD, sequences=(Sequence(name="s", maximum=2**31 - 1),)), "sequence s", "ends at 2147483647"),
        (replace(GOOD, sequences=(Sequence(name="s", logged=False),)), "sequence s", "UNLOGGED"),
        (replace(GOOD, rules=("r",)), "rule r", "drop or rewrite"),
        (replace(GOOD, referring=("other",)), "foreign key of other", "cannot be removed"),
        (replace(GOOD, has_children=True), "table", "inherit"),
        (replace(GOOD, kind="p"), "table", "partitioned"),
        (
            replace(GOOD, indexes=(*GOOD.indexes, Index(columns=("kafka_key",), unique=True))),
            "index",
            "unique one on (kafka_key)",
        ),
        (
            with_column("create_time", Column(type="timestamp with time zone", not_null=True, default="'2020-01-01'")),
            "create_time",
            "is not the clock",
        ),
        (
            with_column("id", Column(type="bigint", not_null=True, default="(- nextval('s'::regclass))")),
            "column id",
            "is not the next of a sequence",
        ),
        (
            with_column("kafka_topic", Column(type="character varying(3)", not_null=True)),
            "column kafka_topic",
            "its type is character varying(3)",
        ),
        (replace(GOOD, sequences=(Sequence(name="s", cache=20),)), "sequence s", "CACHE 20"),
        (replace(GOOD, sequences=(Sequence(name="s", increment=-1),)), "sequence s", "INCREMENT -1"),
        (replace(GOOD, sequences=(Sequence(name="s", increment=2),)), "sequence s", "INCREMENT 2"),
        (
            with_column("dispatched_time", Column(type="timestamp with time zone", default="now()")),
            "column dispatched_time",
            "makes every new row one that was sent",
        ),
        (replace(GOOD, sequences=(Sequence(name="s", cycle=True),)), "sequence s", "CYCLE"),
        (replace(GOOD, indexes=GOOD.indexes[1:]), "column id", "no primary key"),
        (replace(GOOD, indexes=GOOD.indexes[:1]), "index", "none on (bucket, id)"),
        (replace(GOOD, persistence="u"), "table", "UNLOGGED"),
        (replace(GOOD, persistence="t"), "table", "TEMPORARY"),
        (replace(GOOD, row_security=True), "table", "row level security"),
        (replace(GOOD, kind="v"), "table", "it is a view"),
    ],
)
def test_a_difference_that_breaks_a_guarantee_is_found(relation: Relation, subject: str, detail: str) -> None:
    breaking = [finding for finding in judge(relation, Shape.THRESHER, NAME) if finding.severity == "breaks"]
    assert len(breaking) == 1
    assert subject in breaking[0].subject
    assert detail in breaking[0].detail


@pytest.mark.parametrize(
    "relation",
    [
        with_column("kafka_topic", Column(type="text", not_null=True)),
        with_column("extra", Column(type="text")),
        with_column("extra", Column(type="text", not_null=True, default="'x'")),
        replace(GOOD, indexes=(GOOD.indexes[0], Index(columns=("bucket", "id")))),
        with_column(
            "dispatched_time", Column(type="timestamp with time zone", default="NULL::timestamp with time zone")
        ),
        replace(GOOD, options=()),
        replace(GOOD, triggers=("t",)),
        replace(GOOD, constraints=("c",)),
        with_column("kafka_topic", Column(type="character varying(300)", not_null=True)),
        with_column("create_time", Column(type="timestamp with time zone", not_null=True, default="now()")),
    ],
)
def test_a_harmless_difference_is_only_a_remark(relation: Relation) -> None:
    assert all(finding.severity == "differs" for finding in judge(relation, Shape.THRESHER, NAME))


def test_an_index_on_other_rows_does_not_serve() -> None:
    other = Index(columns=("bucket", "id"), predicate="(leader_id IS NULL)")
    findings = list(judge(replace(GOOD, indexes=(GOOD.indexes[0], other)), Shape.THRESHER, NAME))
    assert any("none on (bucket, id)" in finding.detail for finding in findings)
