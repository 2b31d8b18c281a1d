"""The demo's report: one HTML page with plots of rate, pending rows and latency over time, each kill marked.

The page holds its plots as SVG and its style as text, so that it opens without a network and without scripts.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 860, 220, 64, 28, 16, 12
_MOST_BUCKETS = 120
_TICKS = 4
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66707c; --grid: #dde2e8; --page: #fff; --a: #1f6fb4;
  --b: #c2571a; --kill: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa5b1; --grid: #333c46; --page: #14191f;
  --a: #6db3f2; --b: #f0995e; --kill: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--page); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .2rem; }
svg { width: 100%; height: auto; } text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--grid); } .a { stroke: var(--a); } .b { stroke: var(--b); } .line { fill: none; stroke-width: 2; }
.kill { stroke: var(--kill); stroke-dasharray: 4 3; } text.kill { fill: var(--kill); stroke: none; }
.legend span { margin-right: 1.2rem; } .swatch { display: inline-block; width: 1.4em; height: 3px; margin-right: .4em;
  vertical-align: middle; } .swatch.a { background: var(--a); } .swatch.b { background: var(--b); }
td, th { text-align: left; padding: .1rem 1.2rem .1rem 0; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """The times at which a row was committed and read, in seconds since the first commit."""

    committed: float
    read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a plot: its name, and for each bucket a value, or None for a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The data of the plots, in buckets of equal length."""

    bucket_seconds: float
    written: Sequence[float]
    read: Sequence[float]
    pending: Sequence[float]
    p50_ms: Sequence[float | None]
    p99_ms: Sequence[float | None]


def course(passages: Iterable[Passage]) -> Course:
    """Return rows written and read per second, pending rows at the end, and latencies by commit, for each bucket."""
    ways = sorted(passages, key=lambda way: way.committed)
    last = max((way.read for way in ways), default=1.0)
    width = max(0.25, math.ceil(last / _MOST_BUCKETS * 4) / 4)
    buckets = max(1, math.ceil(last / width))
    written, read = [0] * buckets, [0] * buckets
    waits: list[list[float]] = [[] for _ in range(buckets)]
    for way in ways:
        begun, ended = _bucket(way.committed, width, buckets), _bucket(way.read, width, buckets)
        written[begun] += 1
        read[ended] += 1
        waits[begun].append((way.read - way.committed) * 1000)
    pending, waiting = [], 0
    for came, went in zip(written, read, strict=True):
        waiting += came - went
        pending.append(float(waiting))
    return Course(
        bucket_seconds=width,
        written=[count / width for count in written],
        read=[count / width for count in read],
        pending=pending,
        p50_ms=[_quantile(each, 0.5) for each in waits],
        p99_ms=[_quantile(each, 0.99) for each in waits],
    )


def page(title: str, shown: Course, kills: Sequence[float], facts: Sequence[tuple[str, str]]) -> str:
    """Return the report. `kills` are in seconds since the first commit; `facts` are pairs of a name and a value."""
    plots = (
        (
            "Rows per second",
            (Line(name="written", values=shown.written), Line(name="read", values=shown.read)),
            _Linear,
        ),
        ("Pending rows", (Line(name="committed and not yet read", values=shown.pending),), _Linear),
        (
            "Milliseconds from commit to reader, by the time of the commit",
            (Line(name="p50", values=shown.p50_ms), Line(name="p99", values=shown.p99_ms)),
            _Logarithmic,
        ),
    )
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts)
    drawn = "".join(_plot(name, lines, kills, shown.bucket_seconds, scale) for name, lines, scale in plots)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1><table>{rows}</table>{drawn}</body></html>\n"
    )


def _bucket(at: float, width: float, buckets: int) -> int:
    return min(buckets - 1, max(0, int(at / width)))


def _quantile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


class _Linear:
    """A scale from 0 to a round number above the greatest value."""

    def __init__(self, greatest: float) -> None:
        step = _round_up(greatest / _TICKS)
        self.ticks = [step * tick for tick in range(_TICKS + 1)]

    def share(self, value: float) -> float:
        return value / self.ticks[-1]


class _Logarithmic:
    """A scale of powers of ten, from 1 on."""

    def __init__(self, greatest: float) -> None:
        self._decades = max(1, math.ceil(math.log10(max(greatest, 1.0))))
        self.ticks = [10.0**power for power in range(self._decades + 1)]

    def share(self, value: float) -> float:
        return math.log10(max(value, 1.0)) / self._decades


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2 or 5 times a power of ten, and 1 at least."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def _plot(
    title: str,
    lines: Sequence[Line],
    kills: Sequence[float],
    bucket_seconds: float,
    scale: Callable[[float], _Linear | _Logarithmic],
) -> str:
    values = [value for line in lines for value in line.values if value is not None]
    upward = scale(max(values, default=1.0))
    seconds = len(lines[0].values) * bucket_seconds

    def x(at: float) -> float:
        return _LEFT + at / seconds * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - upward.share(value) * (_HEIGHT - _BOTTOM - _TOP)

    drawn = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.0f}</text>'
        for tick in upward.ticks
    ]
    step = _round_up(seconds / 8)
    drawn += [
        f'<text x="{x(tick * step):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{tick * step:.0f} s</text>'
        for tick in range(int(seconds / step) + 1)
    ]
    for line, colour in zip(lines, "ab", strict=False):
        drawn += [
            f'<polyline class="line {colour}" points="{" ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)}"/>'
            for run in _runs(line.values, bucket_seconds)
        ]
    drawn += [
        f'<line class="kill" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text class="kill" x="{x(at) + 4:.1f}" y="{_TOP + 8}">kill -9</text>'
        for at in kills
    ]
    legend = "".join(
        f'<span><i class="swatch {colour}"></i>{html.escape(line.name)}</span>'
        for line, colour in zip(lines, "ab", strict=False)
    )
    return (
        f'<h2>{html.escape(title)}</h2><div class="legend">{legend}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">{"".join(drawn)}</svg>'
    )


def _runs(values: Sequence[float | None], bucket_seconds: float) -> Iterable[list[tuple[float, float]]]:
    """Cut a line at its gaps; a point stands in the middle of its bucket."""
    run: list[tuple[float, float]] = []
    for bucket, value in enumerate([*values, None]):
        if value is not None:
            run.append(((bucket + 0.5) * bucket_seconds, value))
        elif run:
            yield run
            run = []
