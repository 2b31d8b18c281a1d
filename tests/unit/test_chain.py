import sys
from collections.abc import Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from thresher.spark.pipeline import Step
from thresher.spark.problem import InputLeft, StepUnusable, WrongBatch
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.chain import run_chain
from thresher.spark.worker.shard import Figures, Shard

Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def stop_requested() -> SignalSafeEvent:
    return SignalSafeEvent()


@pytest.fixture
def shard(stop_requested: SignalSafeEvent) -> Iterator[Shard]:
    with ExitStack() as resources:
        yield Shard(
            pipeline="test",
            index=0,
            shards=1,
            attempt=1,
            stop_requested=stop_requested,
            figures=Figures(),
            resources=resources,
        )


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make steps of functions that are defined in the test."""

    def make(*functions: Any) -> list[Step]:
        module = ModuleType("made_up")
        for number, function in enumerate(functions):
            setattr(module, f"f{number}", function)
        monkeypatch.setitem(sys.modules, "made_up", module)
        return [Step(function=f"made_up:f{number}", config={"number": number}) for number in range(len(functions))]

    return make


def one(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": [number]})


def read(shard: Shard, config: Any) -> Batches:
    for number in range(3):
        yield one(number)


def test_each_function_gets_its_own_configuration(shard: Shard, steps: Any) -> None:
    seen = []

    def note(shard: Shard, config: Any, batches: Batches) -> Batches:
        seen.append(config["number"])
        yield from batches

    run_chain(steps(read, note, note), shard)
    assert sorted(seen) == [1, 2]


def test_the_last_function_pulls_one_batch_at_a_time(shard: Shard, steps: Any) -> None:
    log = []

    def reads(shard: Shard, config: Any) -> Batches:
        for number in range(3):
            log.append(f"read {number}")
            yield one(number)

    def publishes(shard: Shard, config: Any, batches: Batches) -> None:
        log.append("open")
        log.extend(f"published {batch['number'][0]}" for batch in batches)

    run_chain(steps(reads, publishes), shard)
    assert log == ["open", "read 0", "published 0", "read 1", "published 1", "read 2", "published 2"]


def test_a_stop_finishes_the_open_batch_and_reads_no_other(
    shard: Shard, stop_requested: SignalSafeEvent, steps: Any
) -> None:
    read_numbers, published = [], []

    def reads(shard: Shard, config: Any) -> Batches:
        for number in range(100):
            read_numbers.append(number)
            yield one(number)

    def publishes(shard: Shard, config: Any, batches: Batches) -> None:
        for batch in batches:
            if batch["number"][0].as_py() == 2:
                stop_requested.set("stop")
            published.append(batch["number"][0].as_py())

    run_chain(steps(reads, publishes), shard)
    assert read_numbers == published == [0, 1, 2]


def test_functions_are_closed_in_reverse_before_their_resources(steps: Any, stop_requested: SignalSafeEvent) -> None:
    log = []

    class Connection:
        def __enter__(self) -> None:
            log.append("connected")

        def __exit__(self, *_: object) -> None:
            log.append("disconnected")

    def reads(shard: Shard, config: Any) -> Batches:
        shard.enter(Connection())
        try:
            yield one(1)
            yield one(2)
        finally:
            log.append("reader closed")

    def changes(shard: Shard, config: Any, batches: Batches) -> Batches:
        try:
            yield from batches
        finally:
            log.append("transform closed")

    def fails(shard: Shard, config: Any, batches: Batches) -> None:
        next(batches)
        raise ValueError("no")

    with ExitStack() as resources:
        shard = Shard(
            pipeline="t",
            index=0,
            shards=1,
            attempt=1,
            stop_requested=stop_requested,
            figures=Figures(),
            resources=resources,
        )
        with pytest.raises(ValueError, match="no"):
            run_chain(steps(reads, changes, fails), shard)
    assert log == ["connected", "transform closed", "reader closed", "disconnected"]


def test_a_function_that_leaves_input_behind_is_an_error(shard: Shard, steps: Any) -> None:
    with pytest.raises(InputLeft, match="made_up:f1 returned before its input ended"):
        run_chain(steps(read, lambda _shard, _config, batches: next(batches) and None), shard)


@pytest.mark.parametrize("given", [None, 7, "text", b"bytes", {"a": 1}, [one(1), None], one(1)])
def test_a_result_without_batches_is_an_error(shard: Shard, steps: Any, given: object) -> None:
    with pytest.raises(WrongBatch, match="made_up:f0"):
        run_chain(steps(lambda _shard, _config: given, lambda _s, _c, batches: list(batches) and None), shard)


def test_a_last_function_that_returns_something_else_is_an_error(shard: Shard, steps: Any) -> None:
    with pytest.raises(WrongBatch, match="made_up:f1 returned 7, a int"):
        run_chain(steps(read, lambda _shard, _config, _batches: 7), shard)


def test_a_permanent_error_says_so() -> None:
    assert not any(error("x").retryable for error in (InputLeft, StepUnusable, WrongBatch))
    assert StepUnusable.exit_code == 2, "the configuration names it"


def test_a_list_of_batches_is_accepted(shard: Shard, steps: Any) -> None:
    run_chain(steps(lambda _shard, _config: [one(1)], lambda _s, _c, batches: list(batches) and None), shard)


@pytest.mark.parametrize("path", ["no_such_package.module:f", "made_up:absent", "made_up:f0.absent", "sys:maxsize"])
def test_a_function_that_cannot_be_imported_is_named(shard: Shard, steps: Any, path: str) -> None:
    steps(read)
    with pytest.raises(StepUnusable, match=path.partition(":")[0]):
        run_chain([Step(function=path)], shard)


def test_no_function_is_called_when_one_is_unusable(shard: Shard, steps: Any) -> None:
    called = []

    def reads(shard: Shard, config: Any) -> Batches:
        called.append(1)
        return iter([])

    with pytest.raises(StepUnusable, match=r"cannot be called as \(shard, config, batches\)"):
        run_chain(steps(reads, lambda _shard: None), shard)
    assert not called
