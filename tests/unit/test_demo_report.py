"""The demo's report: its plots, and that it opens without a network."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.cli.demo.report import Passage, course, page

WAYS = [Passage(committed=at / 100, read=at / 100 + 0.02) for at in range(1000)]
ONE_LATE = [*WAYS, Passage(committed=5.0, read=8.0)]


def svgs(text: str) -> list[ET.Element]:
    return [ET.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]  # noqa: S314 - our own


def points(svg: ET.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]
        for line in svg.iter("polyline")
    ]


def test_a_steady_flow_has_a_steady_rate_and_latency() -> None:
    shown = course(WAYS)
    assert shown.written[1:-2] == pytest.approx([100] * (len(shown.written) - 3), rel=0.05)
    assert [each for each in shown.p50_ms if each is not None] == pytest.approx([20] * 40, rel=0.01)


def test_a_late_row_is_pending_and_slow() -> None:
    shown = course(ONE_LATE)
    during = shown.pending[int(6 / shown.bucket_seconds)]
    after = shown.pending[int(8.5 / shown.bucket_seconds)]
    assert during - after == 1
    slowest = shown.p99_ms[int(5 / shown.bucket_seconds)]
    assert slowest is not None
    assert slowest > 2900


def test_a_bucket_without_a_commit_has_no_latency() -> None:
    shown = course([Passage(committed=0, read=0.1), Passage(committed=9, read=9.1)])
    assert None in shown.p50_ms
    assert len(points(svgs(page("t", shown, [], []))[2])) == 4, "each of the two lines has a gap"


@given(
    st.lists(
        st.builds(
            lambda at, wait: Passage(committed=at, read=at + wait),
            at=st.floats(0, 1000),
            wait=st.floats(0, 100),
        )
    )
)
def test_every_row_is_counted_and_none_stays_pending(ways: list[Passage]) -> None:
    shown = course(ways)
    assert sum(shown.written) * shown.bucket_seconds == pytest.approx(len(ways))
    assert sum(shown.read) * shown.bucket_seconds == pytest.approx(len(ways))
    assert shown.pending[-1] == 0
    for svg in svgs(page("t", shown, [0.0], [])):
        for run in points(svg):
            assert all(0 <= x <= 860 and 0 <= y <= 220 for x, y in run)


def test_each_plot_marks_each_kill() -> None:
    plots = svgs(page("t", course(WAYS), [2.5, 7.5], []))
    assert len(plots) == 3
    for plot in plots:
        assert [text.text for text in plot.iter("text") if text.attrib.get("class") == "kill"] == ["kill -9"] * 2


def test_the_page_needs_no_network_and_escapes_texts() -> None:
    text = page("<title>", course(WAYS), [], [("lost & found", "<0>")])
    assert "<title>&lt;title&gt;</title>" in text
    assert "<th>lost &amp; found</th><td>&lt;0&gt;</td>" in text
    assert not re.search(r"https?:|<script|<link|src=|@import|url\(", text)
