import pytest

from thresher.db import InvalidName, TableName


@pytest.mark.parametrize(
    ("table", "schema", "quoted"),
    [
        ("outbox", None, '"outbox"'),
        ("outbox", "billing", '"billing"."outbox"'),
        ('we"ird', None, '"we""ird"'),
        ("a.b", "c.d", '"c.d"."a.b"'),
        ("Größe", None, '"Größe"'),
        ("o; DROP TABLE x", None, '"o; DROP TABLE x"'),
    ],
)
def test_names_are_quoted_as_identifiers(table: str, schema: str | None, quoted: str) -> None:
    assert TableName(table=table, schema=schema).quoted() == quoted


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\udc80", "not valid Unicode"),
        ("x" * 59, "at most 58"),
        ("ü" * 30, "60 bytes"),
    ],
)
def test_a_name_that_cannot_work_is_refused_with_the_reason(table: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason):
        TableName(table=table)


def test_a_schema_may_use_all_63_bytes_and_no_more() -> None:
    TableName(table="t", schema="s" * 63)
    with pytest.raises(InvalidName, match="silently drops"):
        TableName(table="t", schema="s" * 64)


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidName, match="not a string"):
        TableName(table=7)  # type: ignore[arg-type]
