"""Who counts as a stranger, decided from what the catalog says."""

import pytest

from thresher.db.strangers import PARTITIONED, Code, judge, judge_own

STRANGE = Code(
    kind="r", part=None, used=None, owner="mallory", superuser=False, of_database=False, of_schema=False, by_name=False,
    ours=False,
)  # fmt: skip


def test_an_owner_without_a_reason_is_a_stranger() -> None:
    (why,) = judge([STRANGE])
    assert why.startswith("it belongs to mallory, who could run code with our rights")
    assert "OWNER TO" in why
    assert why.endswith('GRANT CREATE ON SCHEMA … TO "mallory"')
    (why,) = judge([STRANGE._replace(part="trigger t", used="function f()")])
    assert why.startswith("trigger t uses function f(), which belongs to mallory, who could run code with our rights: ")
    assert why.endswith('GRANT CREATE ON SCHEMA … TO "mallory"')


@pytest.mark.parametrize("reason", ["superuser", "of_database", "of_schema", "by_name", "ours"])
def test_an_owner_needs_one_reason_to_be_admitted(reason: str) -> None:
    assert list(judge([STRANGE._replace(**{reason: True})])) == []  # type: ignore[arg-type]


def test_a_table_of_ours_has_no_rules_and_is_a_table() -> None:
    ours = STRANGE._replace(ours=True)
    assert list(judge_own([ours])) == []
    assert list(judge_own([ours, ours._replace(part="rule r", used="tables")])) == ["rule r can rewrite what we do"]
    assert list(judge_own([ours._replace(kind="v")])) == ["it is a view; a table is needed"]
    assert list(judge_own([ours._replace(kind="p")])) == ["it is a partitioned table; a table is needed"]
    assert list(judge_own([ours._replace(kind="p")], PARTITIONED)) == []
    assert list(judge_own([])) == []
