"""The alerts of examples/prometheus fire when they should, and name what exists. The cases run under promtool too."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus_rules import Query, Selector, run_case, series_of
from thresher.capture.report.metrics import OWN_FAMILIES as OF_CAPTURE
from thresher.capture.report.metrics import WORDING as CAPTURE
from thresher.delivery.leader.server_probes import SERVERS
from thresher.observe.metric import Family, MetricKind
from thresher.queue.metrics import FAMILIES as OF_QUEUE
from thresher.relay.report.metrics import FAMILIES as OF_RELAY
from thresher.service.metrics import ServiceMetrics
from thresher.tail.leader.metrics import OWN_FAMILIES as OF_TAIL
from thresher.tail.leader.metrics import WORDING as TAIL
from thresher.tracker.metrics import OWN_FAMILIES as OF_TRACKER
from thresher.tracker.metrics import WORDING as TRACKER
from thresher.tracker.workload import SERVERS as TRACKERS_SERVERS

PLACE = Path(__file__).parents[2] / "examples" / "prometheus"
GROUPS = yaml.safe_load((PLACE / "alerts.yaml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
TESTS = yaml.safe_load((PLACE / "alerts_test.yaml").read_text())
CASES = TESTS["tests"]


def samples_of(families: tuple[Family, ...]) -> dict[str, Family]:
    """Return the metric family of each name under which Prometheus has samples."""
    ends = {
        MetricKind.COUNTER: ("_total",),
        MetricKind.GAUGE: ("",),
        MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
    }
    return {each.name.removesuffix("_total") + end: each for each in families for end in ends[each.kind]}


# The samples of each pipeline.
OF: dict[str, dict[str, Family]] = {
    "relay": samples_of(OF_RELAY),
    "tail": samples_of((*ServiceMetrics(TAIL, servers=SERVERS).families, *OF_TAIL)),
    "capture": samples_of((*ServiceMetrics(CAPTURE, servers=SERVERS).families, *OF_CAPTURE)),
    "tracker": samples_of((*ServiceMetrics(TRACKER, servers=TRACKERS_SERVERS).families, *OF_TRACKER)),
    "queue": samples_of(OF_QUEUE),
}


def declared_by(selector: Selector) -> dict[str, Family]:
    """Return the families of a selector's metric by pipeline: those that its matchers admit."""
    named = {label for label, sign, value in selector.matchers if (sign, value) == ("!=", "")}
    found = {pipeline: of[selector.metric] for pipeline, of in OF.items() if selector.metric in of}
    return {pipeline: each for pipeline, each in found.items() if named <= set(each.labels)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_alerts_fire_when_they_should_and_no_others(case: dict[str, Any]) -> None:
    samples = run_case(RULES, case, TESTS["evaluation_interval"])
    for asked in case["promql_expr_test"]:
        wanted = {series_of(each["labels"])[1]: each["value"] for each in asked["exp_samples"]}
        assert samples.asked(asked["expr"], asked["eval_time"]) == wanted, asked["eval_time"]


def test_every_alert_fires_in_some_case() -> None:
    fired = {
        dict(series_of(sample["labels"])[1])["alertname"]
        for case in CASES
        for asked in case["promql_expr_test"]
        for sample in asked["exp_samples"]
    }
    assert fired == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize(
    ("group", "rule"),
    [(group["name"], rule) for group in GROUPS for rule in group["rules"]],
    ids=str,
)
def test_an_alert_asks_for_metrics_and_labels_that_exist(group: str, rule: dict[str, Any]) -> None:
    query = Query(rule["expr"])
    for selector in query.selectors:
        if selector.metric == "up":
            continue
        families = declared_by(selector)
        assert families, selector.metric
        # An alert about one pipeline reads no metric of another that has the same name.
        pipeline = group.removeprefix("thresher-")
        assert pipeline == "thresher" or families.keys() == {pipeline}, selector
        labels = {label for each in families.values() for label in each.labels}
        assert {label for label, _, _ in selector.matchers} <= labels
        # An alert about all pipelines says of which one it speaks.
        assert {each.labels[0] for each in families.values()} <= query.grouped | (
            set() if query.grouped else {"relay", "tail", "capture", "tracker"}
        )
        counted = {each.kind for each in families.values()} == {MetricKind.COUNTER}
        assert selector.metric == "thresher_topic_turns_total" or counted == (selector.function in {"rate", "increase"})
    known = {label for of in OF.values() for each in of.values() for label in each.labels}
    assert query.grouped <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Thresher[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {"summary", "description"} == set(rule["annotations"])
    told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    grouped = Query(rule["expr"]).grouped
    assert told <= (grouped or {"relay", "tail", "capture", "tracker", "instance"})
    # Each label by which alerts differ is told.
    assert grouped <= told


def test_the_series_of_the_cases_exist() -> None:
    for metric, labels in (series_of(each["series"]) for case in CASES for each in case["input_series"]):
        if metric != "up":
            declared = [set(of[metric].labels) for of in OF.values() if metric in of]
            assert dict(labels).keys() - {"instance"} in declared, (metric, labels)


@pytest.mark.parametrize(
    "text", ["up + 1", "avg by (job) (up)", "up > on (job) up", "rate(up)", "up[5m]", "up{job=", "sum(up)"]
)
def test_what_the_evaluator_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        Query(text)
