"""Transforms of batches, and the fate of rows on which they fail."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from thresher.delivery.fate import Kind
from thresher.delivery.problem import TransformKeepsFailing, TransformUnusable
from thresher.delivery.stored_rows import SCHEMA, batch_of
from thresher.delivery.transforms import Transform, load, run


def batch(*ids: int) -> pa.RecordBatch:
    return batch_of([(id_, None, "t", b"k", b"v", [], [], None, None) for id_ in ids])


def ids(found: pa.RecordBatch) -> list[int]:
    return found.column("id").to_pylist()  # type: ignore[no-any-return]


def only(test: Callable[[int], bool]) -> Transform:
    """Return a transform that keeps only the rows whose id passes the test."""
    return lambda given: given.filter(pa.array([test(id_) for id_ in ids(given)], pa.bool_()))


def failing(*bad: int) -> Transform:
    """Return a transform that fails on batches with one of these rows."""

    def function(given: pa.RecordBatch) -> pa.RecordBatch:
        if found := sorted(set(ids(given)) & set(bad)):
            raise ValueError(f"cannot read {found[0]}")
        return given

    return function


def column(given: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    return given.set_column(given.schema.get_field_index(name), name, values)


def upper(given: pa.RecordBatch) -> pa.RecordBatch:
    return column(given, "topic", pc.utf8_upper(given.column("topic")))


def test_a_batch_is_unchanged_without_transforms() -> None:
    assert run([], batch(1, 2)).batch == batch(1, 2)


def test_a_filtered_row_is_not_a_failure() -> None:
    done = run([("m:f", only(lambda id_: id_ != 2))], batch(1, 2, 3))
    assert ids(done.batch) == [1, 3]
    assert done.failed == {}


def test_all_rows_may_be_filtered() -> None:
    done = run([("m:f", only(lambda _: False))], batch(1, 2))
    assert ids(done.batch) == []
    assert done.batch.schema == SCHEMA


def choosy(given: pa.RecordBatch) -> pa.RecordBatch:
    """Fail on an empty batch."""
    assert given.num_rows
    return given


def test_no_function_gets_an_empty_batch() -> None:
    done = run([("m:f", choosy)], batch(), 3)
    assert (ids(done.batch), done.failed, done.failures) == ([], {}, 3)
    assert done.batch.schema == SCHEMA


def test_no_function_runs_after_all_rows_were_filtered() -> None:
    done = run([("m:f", only(lambda _: False)), ("m:g", choosy)], batch(1, 2))
    assert (ids(done.batch), done.failed) == ([], {})


def test_a_changed_row_is_passed_on() -> None:
    assert run([("m:f", upper)], batch(1)).batch.column("topic").to_pylist() == ["T"]


def test_several_functions_are_applied_in_order() -> None:
    seen: list[Any] = []

    def look(given: pa.RecordBatch) -> pa.RecordBatch:
        seen.append((ids(given), given.column("topic").to_pylist()))
        return given

    done = run([("m:f", only(lambda id_: id_ > 1)), ("m:g", upper), ("m:h", look)], batch(1, 2))
    assert seen == [([2], ["T"])]
    assert ids(done.batch) == [2]


@pytest.mark.parametrize("bad", [1, 4, 7])
def test_a_row_that_a_function_fails_on_is_dead_alone(bad: int) -> None:
    done = run([("m:first", upper), ("m:second", failing(bad))], batch(*range(1, 8)))
    assert ids(done.batch) == [id_ for id_ in range(1, 8) if id_ != bad]
    assert list(done.failed) == [bad]
    assert done.failed[bad].kind is Kind.TRANSFORM
    assert done.failed[bad].reason == f"transform m:second failed on row {bad}: ValueError: cannot read {bad}"


def test_extra_columns_and_other_column_orders_are_accepted() -> None:
    def shuffled(given: pa.RecordBatch) -> pa.RecordBatch:
        turned = given.select(list(reversed(given.schema.names)))
        return turned.append_column("more", pa.nulls(given.num_rows))

    assert run([("m:f", shuffled)], batch(1, 2)).batch == batch(1, 2)


def test_a_function_may_reorder_rows() -> None:
    done = run([("m:f", lambda given: given.take(pa.array([1, 0])))], batch(1, 2))
    assert sorted(ids(done.batch)) == [1, 2]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda given: column(given, "id", pa.array([99] * given.num_rows, pa.int64())), "not given: ['99']"),
        (lambda given: column(given, "id", pa.nulls(given.num_rows, pa.int64())), "not given: ['None']"),
        (lambda given: pa.concat_batches([given, given]), "a row twice"),
        (lambda given: given.drop_columns(["value"]), "no column value"),
        (lambda given: given.drop_columns(["value", "key"]), "no column key, value"),
        (lambda given: column(given, "topic", pa.array([[1]] * given.num_rows)), "another schema"),
        (lambda given: column(given, "id", pa.array(["x"] * given.num_rows)), "another schema"),
        (lambda _: None, "returned a NoneType, not a record batch"),
        (lambda given: given.to_pylist(), "returned a list, not a record batch"),
        (lambda given: pa.Table.from_batches([given]), "returned a Table, not a record batch"),
        pytest.param(lambda given: given.append_column("id", given.column("id")), "another schema"),
    ],
)
def test_an_unusable_result_is_a_failure_of_its_row(function: Transform, why: str) -> None:
    done = run([("m:f", function)], batch(1))
    assert ids(done.batch) == []
    assert why in done.failed[1].reason
    assert done.failed[1].reason.startswith("transform m:f failed on row 1: ")


def test_a_failure_on_batches_alone_makes_no_dead_row() -> None:
    def pairs(given: pa.RecordBatch) -> pa.RecordBatch:
        if given.num_rows > 1:
            raise ValueError("one at a time")
        return given

    done = run([("m:f", pairs)], batch(1, 2, 3))
    assert ids(done.batch) == [1, 2, 3]
    assert done.failed == {}
    assert done.failures == 0


def test_ninety_nine_failures_in_a_row_are_the_rows_fault() -> None:
    done = run([("m:f", failing(*range(99)))], batch(*range(99)))
    assert len(done.failed) == done.failures == 99


def test_a_hundred_failures_in_a_row_are_the_functions_fault() -> None:
    with pytest.raises(TransformKeepsFailing, match="m:f failed on 100 rows in a row, the last being 99"):
        run([("m:f", failing(*range(100)))], batch(*range(100)))


def test_failures_in_a_row_are_counted_across_batches() -> None:
    done = run([("m:f", failing(*range(60)))], batch(*range(60)))
    done = run([("m:f", failing(*range(60, 99)))], batch(*range(60, 99)), done.failures)
    assert done.failures == 99
    with pytest.raises(TransformKeepsFailing):
        run([("m:f", failing(99))], batch(99), done.failures)


def test_a_success_resets_the_count_of_failures() -> None:
    done = run([("m:f", failing(*range(60)))], batch(*range(60)))
    assert run([("m:f", failing())], batch(100), done.failures).failures == 0
    mixed = run([("m:f", failing(*range(60, 90), *range(91, 150)))], batch(*range(60, 150)), done.failures)
    assert mixed.failures == 59
    assert ids(mixed.batch) == [90]


def test_an_empty_batch_changes_no_count() -> None:
    assert run([("m:f", upper)], batch(), 7).failures == 7


def test_functions_are_found_by_their_path() -> None:
    ((path, function),) = load(["math:sqrt"])
    assert path == "math:sqrt"
    assert function(4) == 2


@pytest.mark.parametrize("path", ["no.such:function", "math:nothing", "math:pi", "math:pow"])
def test_an_invalid_transform_is_refused_before_the_first_row(path: str) -> None:
    with pytest.raises(TransformUnusable, match="transform: ") as refused:
        load([path])
    assert refused.value.exit_code == 2, "as a configuration that cannot work"


def test_a_first_batch_that_fails_wholly_blames_the_function() -> None:
    with pytest.raises(TransformKeepsFailing, match=r"it failed on all 3 rows of its first batch"):
        run([("m:f", failing(1, 2, 3))], batch(1, 2, 3), succeeded=False)
    with pytest.raises(TransformKeepsFailing):
        run([("m:f", failing(1))], batch(1), succeeded=False)


def test_failed_rows_of_a_partly_good_first_batch_are_dead() -> None:
    assert set(run([("m:f", failing(1, 3))], batch(1, 2, 3), succeeded=False).failed) == {1, 3}
    assert run([("m:f", only(lambda _: False))], batch(1), succeeded=False).failed == {}
    assert run([("m:f", failing(1))], batch(), succeeded=False).failed == {}
