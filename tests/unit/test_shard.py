import decimal
import fractions
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.engine.only_shard import only_shard
from thresher.spark.problem import FigureInvalid
from thresher.spark.worker.shard import Shard


@pytest.fixture
def shard() -> Iterator[Shard]:
    with ExitStack() as resources:
        yield only_shard(resources)


@pytest.mark.parametrize("kind", ["count", "gauge"])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (decimal.Decimal(1), "cannot be Decimal('1'), a Decimal"),
        (None, "cannot be None, a NoneType"),
        (float("nan"), "cannot be nan"),
        (float("inf"), "cannot be inf"),
    ],
)
def test_a_figure_without_a_finite_number_is_refused(shard: Shard, kind: str, value: Any, told: str) -> None:
    with pytest.raises(FigureInvalid) as raised:
        getattr(shard, kind)("figure", value)
    assert "'figure' " + told in str(raised.value)
    assert not raised.value.retryable


def test_any_real_number_is_a_figure(shard: Shard) -> None:
    half: Any = fractions.Fraction(1, 2)
    shard.count("halves", half)
    shard.count("halves", 1)
    assert shard.counts == {"halves": 1.5}


def test_one_figure_too_many_is_refused(shard: Shard) -> None:
    numbers = range(1000)
    with pytest.raises(FigureInvalid, match="one figure too many"):
        list(map(shard.count, map(str, numbers)))


@pytest.mark.parametrize("value", [decimal.Decimal(1), float("nan")])
def test_an_event_that_json_cannot_carry_is_refused_by_name(shard: Shard, value: Any) -> None:
    with pytest.raises(FigureInvalid, match="the event 'odd' cannot be reported"):
        shard.event("odd", value=value)


def test_an_event_that_is_too_large_is_refused(shard: Shard) -> None:
    with pytest.raises(FigureInvalid, match="are too many"):
        shard.event("big", value="x" * 100_000)
