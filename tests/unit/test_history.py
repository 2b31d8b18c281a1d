from pathlib import Path

import pytest

from thresher.core.errors import InvalidInput
from thresher.testing.history import Content, HistoryWriter, Outcome, read_history, topics_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def test_a_written_history_reads_back_the_same(path: Path) -> None:
    writer = HistoryWriter(path, "run")
    writer.open_run("topic")
    writer.begin(0, 0, 100, [(0, "a"), (1, None)])
    writer.end(0, 0, 200, Outcome.COMMITTED)
    writer.begin(1, 0, 150, [(0, "ü")])
    writer.end(1, 0, 160, Outcome.ROLLED_BACK)
    writer.close()
    first, second = read_history(path)
    assert (first.begin, first.end, first.outcome, first.rows) == (100, 200, Outcome.COMMITTED, ((0, "a"), (1, None)))
    assert list(first.identities()) == ["run.0.0", "run.0.1"]
    assert (second.writer, second.outcome, second.rows) == (1, Outcome.ROLLED_BACK, ((0, "ü"),))


def test_contents_read_back_the_same(path: Path) -> None:
    contents = [
        Content(topic="t", value="9c1f"),
        Content(topic="u", value=None, headers="ab", partition=0, timestamp=1_700_000_000_000),
    ]
    writer = HistoryWriter(path, "run")
    writer.open_run("t", epoch=5)
    writer.begin(0, 0, 100, [(0, "a"), (1, None)], contents)
    writer.close()
    (transaction,) = read_history(path)
    assert transaction.rows == ((0, "a"), (1, None))
    assert transaction.contents == tuple(contents)
    assert transaction.epoch == 5


def test_a_history_of_the_first_version_is_read(path: Path) -> None:
    path.write_text(
        '{"event":"run","format":"thresher-history","version":1,"run":"r","topic":"t","clock":"monotonic-ns"}\n'
        '{"event":"begin","run":"r","writer":0,"transaction":0,"at":1,"rows":[[0,"a"],[1,null]]}\n'
        '{"event":"end","run":"r","writer":0,"transaction":0,"at":2,"outcome":"committed"}\n'
    )
    (transaction,) = read_history(path)
    assert transaction.rows == ((0, "a"), (1, None))
    assert (transaction.outcome, transaction.contents, transaction.epoch) == (Outcome.COMMITTED, (), None)
    assert topics_of(path) == ["t"]


def test_a_transaction_without_an_end_is_unknown(path: Path) -> None:
    writer = HistoryWriter(path, "run")
    writer.begin(0, 0, 100, [(0, "a")])
    writer.close()
    (transaction,) = read_history(path)
    assert (transaction.outcome, transaction.end) == (Outcome.UNKNOWN, None)


def test_a_line_torn_by_a_crash_leaves_its_transaction_unknown(path: Path) -> None:
    writer = HistoryWriter(path, "run")
    writer.begin(0, 0, 100, [(0, "a")])
    writer.end(0, 0, 200, Outcome.COMMITTED)
    writer.close()
    path.write_bytes(path.read_bytes()[:-5])
    (transaction,) = read_history(path)
    assert transaction.outcome is Outcome.UNKNOWN


def test_a_later_run_continues_after_a_torn_line(path: Path) -> None:
    for run in ("one", "two"):
        writer = HistoryWriter(path, run)
        writer.open_run("topic")
        writer.begin(0, 0, 100, [(0, "a")])
        writer.end(0, 0, 200, Outcome.COMMITTED)
        writer.close()
        if run == "one":
            path.write_bytes(path.read_bytes()[:-5])
    assert [(each.run, each.outcome) for each in read_history(path)] == [
        ("one", Outcome.UNKNOWN),
        ("two", Outcome.COMMITTED),
    ]


BEGIN = '{"event":"begin","run":"r","writer":0,"transaction":0,"at":1,"rows":[]}'


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "{}",
        "[]",
        '{"event": "party"}',
        '{"event": "begin"}',
        '{"event":"begin","run":"r","writer":0,"transaction":1,"at":1}',
        '{"event":"run","format":"x","version":1}',
        '{"event":"run","format":"thresher-history","version":3}',
        '{"event":"begin","run":"r","writer":0,"transaction":1,"at":1,"topic":"t","rows":[[0,"a","9c"],[1,"b"]]}',
        '{"event":"begin","run":"r","writer":0,"transaction":1,"at":1,"topic":"t","rows":[[0,"a","9c",{"x":1}]]}',
        '{"event":"end","run":"r","writer":0,"transaction":0,"at":1,"outcome":"maybe"}',
        '{"event":"end","run":"r","writer":0,"transaction":9,"at":1,"outcome":"committed"}',
    ],
)
def test_a_wrong_line_is_named(path: Path, line: str) -> None:
    path.write_text(f"{BEGIN}\n{line}\n{BEGIN}\n")
    with pytest.raises(InvalidInput, match="line 2"):
        read_history(path)


def test_the_topics_of_all_runs_are_named_once(path: Path) -> None:
    for run, topic in (("one", "orders"), ("two", "bills"), ("three", "orders")):
        writer = HistoryWriter(path, run)
        writer.open_run(topic)
        writer.begin(0, 0, 100, [(0, "a")])
        writer.close()
    assert topics_of(path) == ["orders", "bills"]
