"""Tables that are fitted to the terminal's width."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from thresher.cli.layout.fitting import SHORTEST, fitted

COLUMNS = ["id", "topic", "reason", "bytes"]
ROWS = [["1", "orders", "a reason that is much too long for this width", "20"], ["2", "t" * 40, "short", ""]]
IMPORTANCE = ("id", "topic", "reason")


def test_a_table_that_fits_is_printed_whole() -> None:
    found = fitted(COLUMNS, ROWS, width=200, importance=IMPORTANCE, shortened={"topic"})
    assert (found.columns, found.left_out) == (tuple(COLUMNS), ())
    assert [list(row) for row in found.rows] == ROWS


def test_a_pipe_gets_the_whole_table() -> None:
    assert fitted(COLUMNS, ROWS, width=None, shortened={"topic"}).rows[1][1] == "t" * 40


def test_a_column_without_room_is_left_out() -> None:
    found = fitted(COLUMNS, ROWS, width=50, importance=IMPORTANCE, shortened={"topic"})
    assert (found.columns, found.left_out) == (("id", "topic", "bytes"), ("reason",))


def test_only_columns_declared_so_are_shortened() -> None:
    found = fitted(COLUMNS, ROWS, width=50, importance=IMPORTANCE, shortened={"topic"})
    assert [row[1] for row in found.rows] == ["orders", f"{'t' * (SHORTEST - 1)}…"]
    assert "topic" in fitted(COLUMNS, ROWS, width=40, importance=IMPORTANCE).left_out


def test_a_value_cannot_send_terminal_control_codes() -> None:
    assert fitted(["a"], [["x\n\x1b[2Jy"]], width=80).rows == (("x \\x1b[2Jy",),)


@given(st.data())
def test_no_line_is_wider_than_the_width(data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.text("ab語", min_size=1, max_size=9), min_size=1, max_size=6, unique=True))
    rows = data.draw(st.lists(st.lists(st.text("x語 ", max_size=60), min_size=len(columns), max_size=len(columns))))
    width = data.draw(st.integers(1, 120))
    found = fitted(columns, rows, width=width, shortened=columns[1:])
    assert sorted((*found.columns, *found.left_out)) == sorted(columns)
    assert columns[0] in found.columns
    if len(found.columns) > 1:
        for row in (found.columns, *found.rows):
            assert sum(map(cell_len, row)) + 3 * len(row) + 1 <= width
