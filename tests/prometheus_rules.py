"""Evaluates alerts, and cases in promtool's format for unit tests of rules, without Prometheus.

It knows the part of PromQL that examples/prometheus uses: selectors with matchers, `sum|max|min|count by`, `absent`,
comparisons with numbers, `and|unless|or` of equal labels, `rate`, `increase`, `delta` and `max_over_time`. It refuses
anything else. A growth is not extrapolated to the ends of its window, as Prometheus does.
"""

import operator
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isnan, nan
from typing import Any

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
# What an expression is at a moment, in seconds.
Expression = Callable[["Samples", float], Vector]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOK_BACK_SECONDS = 300
_TOKEN = re.compile(r'\s*(\d+[smhd]\b|\d+(?:\.\d+)?|[A-Za-z_]\w*|"[^"]*"|[=!]~|[<>!=]=|[<>={}()\[\],])')
_JOINS = (("or",), ("and", "unless"))
_COMPARED = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_AGGREGATED: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
_SERIES = re.compile(r"(\w+)?(?:\{(.*)\})?")


def seconds(duration: str) -> int:
    """Return a duration such as `1h30m` in seconds."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration))


def series_of(text: str) -> tuple[str, Labels]:
    """Return the metric, if any, and the labels of a series as it is written: `name{label="value"}`."""
    found = _SERIES.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found[1] or "", frozenset(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))


def values_of(notation: str) -> Iterator[float | None]:
    """Yield the values of a series in promtool's notation: None without a sample, NaN where the series ends."""
    for each in notation.split():
        if each == "stale":
            yield nan
        elif found := re.fullmatch(r"_(?:x(\d+))?", each):
            yield from [None] * int(found[1] or 1)
        elif found := re.fullmatch(r"(\d+)(?:([+-]\d+)x(\d+))?", each):
            yield from (float(found[1]) + n * float(found[2] or 0) for n in range(int(found[3] or 0) + 1))
        else:
            raise ValueError(each)


class Samples:
    """The samples of all series, in the order of time."""

    def __init__(self) -> None:
        self._series: defaultdict[str, defaultdict[Labels, list[tuple[float, float]]]]
        self._series = defaultdict(lambda: defaultdict(list))

    def add(self, metric: str, labels: Labels, at: float, value: float) -> None:
        self._series[metric][labels].append((at, value))

    def at(self, wanted: "Selector", now: float) -> Vector:
        """Return the last sample of each series that has not ended."""
        last = {labels: values[-1] for labels, values in self._window(wanted, now, _LOOK_BACK_SECONDS)}
        return {labels: value for labels, value in last.items() if not isnan(value)}

    def over(self, wanted: "Selector", now: float, length: float) -> dict[Labels, list[float]]:
        """Return the values of each series within the last seconds."""
        return {
            labels: [value for value in values if not isnan(value)]
            for labels, values in self._window(wanted, now, length)
        }

    def asked(self, text: str, moment: str) -> Vector:
        """Evaluate an expression at a moment."""
        return Query(text).run(self, seconds(moment))

    def _window(self, wanted: "Selector", now: float, length: float) -> Iterator[tuple[Labels, list[float]]]:
        for labels, samples in self._series[wanted.metric].items():
            part = samples[bisect_left(samples, (now - length,)) : bisect_right(samples, (now, inf))]
            if part and wanted.fits(dict(labels)):
                yield labels, [value for _, value in part]


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric with matchers: label, operator and value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    # The function of a window around it, if any.
    function: str | None = None

    def fits(self, labels: dict[str, str]) -> bool:
        return all(_matches(labels.get(label, ""), sign, value) for label, sign, value in self.matchers)


def _matches(found: str, sign: str, value: str) -> bool:
    equal = found == value if sign in {"=", "!="} else re.fullmatch(value, found) is not None
    return equal == (sign in {"=", "=~"})


def _growth(values: list[float]) -> float:
    """Return how much a counter has grown: after a restart it begins at 0 again."""
    return sum(b - a if b >= a else b for a, b in pairwise(values))


# Functions of a series' values in a window of some seconds.
_OVER: dict[str, Callable[[list[float], int], float]] = {
    "increase": lambda values, _: _growth(values),
    "rate": lambda values, length: _growth(values) / length,
    "delta": lambda values, _: values[-1] - values[0],
    "max_over_time": lambda values, _: max(values),
}


@dataclass
class Query:
    """A parsed expression, with the selectors and the labels of `by` in it."""

    text: str
    selectors: list[Selector] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._tokens = _TOKEN.findall(self.text)
        if "".join(self._tokens) != re.sub(r"\s+", "", self.text):
            raise ValueError(self.text)
        self.run = self._joins()
        if self._tokens:
            raise ValueError(f"{self.text}: not understood from {self._tokens[:3]}")

    def _next(self, *wanted: str) -> str:
        """Take the next token, which must be one of those that are wanted, if any."""
        if not self._tokens or (wanted and self._tokens[0] not in wanted):
            raise ValueError(f"{self.text}: wanted {wanted}, found {self._tokens[:3]}")
        return str(self._tokens.pop(0))

    def _is(self, *tokens: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in tokens

    def _joins(self, level: int = 0) -> Expression:
        """Parse `or`, and within it `and` and `unless`, which bind closer."""
        if level == len(_JOINS):
            return self._comparison()
        left = self._joins(level + 1)
        while self._is(*_JOINS[level]):
            left = _joined(self._next(), left, self._joins(level + 1))
        return left

    def _comparison(self) -> Expression:
        left = self._operand()
        if not self._is(*_COMPARED):
            return left
        holds, number = _COMPARED[self._next()], self._number()
        return lambda samples, now: {of: value for of, value in left(samples, now).items() if holds(value, number)}

    def _number(self) -> float:
        if not (text := self._next())[0].isdigit():
            raise ValueError(f"{self.text}: {text} is no number")
        return float(text)

    def _operand(self) -> Expression:
        name = self._next()
        if name == "(":
            inner = self._joins()
            self._next(")")
            return inner
        if name in _AGGREGATED:
            return self._aggregation(_AGGREGATED[name])
        if name == "absent":
            self._next("(")
            of = self._selector(self._next())
            self._next(")")
            known = frozenset((label, value) for label, sign, value in of.matchers if sign == "=")
            return lambda samples, now: {} if samples.at(of, now) else {known: 1.0}
        if name in _OVER:
            return self._function(name)
        of = self._selector(name)
        return lambda samples, now: samples.at(of, now)

    def _function(self, name: str) -> Expression:
        self._next("(")
        of = self._selector(self._next(), name)
        self._next("[")
        length = seconds(self._next())
        self._next("]")
        self._next(")")
        # A growth needs two samples.
        least = 1 if name == "max_over_time" else 2
        return lambda samples, now: {
            labels: _OVER[name](values, length)
            for labels, values in samples.over(of, now, length).items()
            if len(values) >= least
        }

    def _aggregation(self, together: Callable[[list[float]], float]) -> Expression:
        self._next("by")
        by = {self._next("("), self._next()}
        while self._next(",", ")") == ",":
            by.add(self._next())
        self.grouped |= by - {"("}
        inner = self._operand()

        def run(samples: Samples, now: float) -> Vector:
            groups: defaultdict[Labels, list[float]] = defaultdict(list)
            for labels, value in inner(samples, now).items():
                groups[frozenset(each for each in labels if each[0] in by)].append(value)
            return {labels: float(together(values)) for labels, values in groups.items()}

        return run

    def _selector(self, metric: str, function: str | None = None) -> Selector:
        if not metric.isidentifier() or self._is("("):
            raise ValueError(f"{self.text}: {metric} is no metric")
        matchers = []
        while self._is("{", ","):
            self._next()
            label, sign, value = self._next(), self._next("=", "!=", "=~", "!~"), self._next()
            matchers.append((label, sign, value.strip('"')))
        if matchers:
            self._next("}")
        self.selectors.append(Selector(metric, tuple(matchers), function))
        return self.selectors[-1]


def _joined(word: str, left: Expression, right: Expression) -> Expression:
    def run(samples: Samples, now: float) -> Vector:
        ours, theirs = left(samples, now), right(samples, now)
        if word == "or":
            return theirs | ours
        return {labels: value for labels, value in ours.items() if (labels in theirs) == (word == "and")}

    return run


def run_case(rules: list[dict[str, Any]], case: dict[str, Any], every: str) -> Samples:
    """Evaluate alerts over a case's series up to its last question; what fires is in the series `ALERTS`, as there."""
    samples = Samples()
    for series in case["input_series"]:
        for n, value in enumerate(values_of(str(series["values"]))):
            if value is not None:
                samples.add(*series_of(series["series"]), n * seconds(case["interval"]), value)
    since: dict[tuple[str, Labels], float] = {}
    parsed = [(rule, Query(rule["expr"])) for rule in rules]
    end = max(seconds(test["eval_time"]) for test in case["promql_expr_test"])
    for now in range(0, end + 1, seconds(every)):
        for rule, query in parsed:
            name, ready = rule["alert"], seconds(rule.get("for", "0s"))
            told = {("alertname", name), ("alertstate", "firing"), *rule["labels"].items()}
            true = query.run(samples, now)
            for key in [key for key in since if key[0] == name and key[1] not in true]:
                del since[key]
                samples.add("ALERTS", frozenset({*key[1], *told}), now, nan)
            for labels in true:
                if now - since.setdefault((name, labels), now) >= ready:
                    samples.add("ALERTS", frozenset({*labels, *told}), now, 1.0)
    return samples
