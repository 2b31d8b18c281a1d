"""Documents and examples for operators agree with the code: metrics, exit codes, probes and units."""

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from thresher.core import errors as problem
from thresher.core.errors import ThresherError
from thresher.observe.metric import Family, MetricKind
from thresher.queue.metrics import FAMILIES as OF_QUEUES
from thresher.relay.report.metrics import ARCHIVE_FAMILIES, FAMILIES, TOPIC_LOCK_FAMILIES
from thresher.service.metrics import ServiceMetrics
from thresher.spark.policy import Policy
from thresher.tracker.metrics import OWN_FAMILIES as OWN
from thresher.tracker.metrics import WORDING as TRACKER_WORDING
from thresher.tracker.workload import SERVERS

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
EXAMPLES = ROOT / "examples"
FAMILY = {family.name: family for family in FAMILIES}
# Labels that Prometheus adds to every sample, and words of its query language.
_ADDED = {"instance", "job", "le"}
_WORDS = {"sum", "max", "by", "rate", "increase", "histogram_quantile", "label_values"}


def family_of(sample: str) -> Family:
    name = re.sub(r"_(bucket|sum|count)$", "", sample)
    family = FAMILY.get(name) or FAMILY[sample]
    assert (family.kind is MetricKind.HISTOGRAM) == (sample != family.name), sample
    return family


def dashboard() -> Iterator[str]:
    board = json.loads((EXAMPLES / "grafana" / "thresher.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


EXPRESSIONS = [*dashboard()]
ALERTS = (EXAMPLES / "prometheus" / "alerts.yaml").read_text()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_uses_existing_metrics(expression: str) -> None:
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", "", expression)
    names = set(re.findall(r"[A-Za-z_]\w*", bare)) - _WORDS
    metrics = {name for name in names if name.startswith("thresher_")}
    assert metrics
    # The only other name is the argument of `label_values`.
    assert names - metrics <= {"relay"}, expression
    labels = {label for metric in metrics for label in family_of(metric).labels} | _ADDED
    asked = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
    asked |= set(re.findall(r"(\w+)\s*[=!]~?\"", expression))
    assert asked <= labels, expression
    for metric in metrics:
        family = family_of(metric)
        counted = family.kind is MetricKind.COUNTER or metric.endswith("_bucket")
        assert counted == bool(re.search(rf"(rate|increase)\({metric}\b", expression)), expression


def test_the_dashboard_shows_every_important_metric() -> None:
    shown = {family_of(name).name for each in EXPRESSIONS for name in re.findall(r"thresher_\w+", each)}
    shown |= FAMILY.keys() & set(re.findall(r"thresher_\w+", ALERTS))
    # Auxiliary figures, and figures of optional features.
    aside = {
        "thresher_build_info", "thresher_transactions_total", "thresher_dropped_events_total", "thresher_pending_exact",
        "thresher_shard_up", "thresher_in_flight_records", "thresher_in_flight_keys",
        *(family.name for family in (*ARCHIVE_FAMILIES, *TOPIC_LOCK_FAMILIES)),
    }  # fmt: skip
    assert set(FAMILY) - shown - aside == set()
    assert not aside & set(re.findall(r"thresher_\w+", " ".join(EXPRESSIONS)))
    ids = [panel["id"] for panel in json.loads((EXAMPLES / "grafana" / "thresher.json").read_text())["panels"]]
    assert len(ids) == len(set(ids))


def test_the_page_lists_every_metric_and_no_other() -> None:
    listed = re.findall(r"^\| `(thresher_\w+)` \| (\w+) \| ?([\w, ]*)\| (.*) \|$", OPERATIONS, re.MULTILINE)
    assert sorted(tuple(part.strip() for part in row) for row in listed) == sorted(
        (family.name, str(family.kind), ", ".join(family.labels[1:]), family.help) for family in FAMILIES
    )


def test_the_page_lists_every_metric_of_queues_and_no_other() -> None:
    listed = re.findall(r"^\| `(thresher_queue_\w+)` \| .+ \|.*\|$", OPERATIONS, re.MULTILINE)
    assert sorted(listed) == sorted(
        f"{family.name}_total" if family.kind is MetricKind.COUNTER else family.name for family in OF_QUEUES
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
def test_names_follow_the_conventions(family: Family) -> None:
    assert re.fullmatch(r"thresher_[a-z]+(_[a-z]+)*", family.name)
    assert family.name.endswith("_total") == (family.kind is MetricKind.COUNTER)
    assert not re.search(r"_(ms|millis|kb|mb|count|sum|bucket)$", family.name)
    assert family.labels[0] == "relay"
    assert set(family.labels) <= {"relay", "shard", "kind", "by", "version", "topic"}
    assert family.help.endswith((".", "'."))


def errors(kind: type[ThresherError]) -> Iterator[type[ThresherError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from errors(each)


def test_exit_codes_are_listed_and_mean_the_same_to_systemd() -> None:
    listed = dict(re.findall(r"^\| ([\d, ]+) \| .* \| (\w+).* \|$", OPERATIONS, re.MULTILINE))
    codes = {kind.exit_code for kind in errors(ThresherError)}
    assert {str(code) for code in codes} <= set(listed)
    never_again = {code for code in codes if listed[str(code)] == "no"}
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(EXAMPLES / "systemd" / "thresher.service")
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == never_again
    # The error classes agree: a process that ends with a permanent error is not restarted.
    for kind in errors(problem.PipelineProblem):
        assert kind.retryable == (kind.exit_code not in never_again), kind
    assert float(service["TimeoutStopSec"]) > longest_stop()
    # Else 'thresher status' does not find the process: the unit may write nowhere else.
    assert service["Environment"] == f"THRESHER_STATE=/var/lib/{service['StateDirectory']}"


def longest_stop() -> float:
    """Return the longest time of a stop: the shards' grace, and the engine's margin."""
    return Policy().grace_seconds + 20.0


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    text = (EXAMPLES / "systemd" / "thresher.service").read_text()
    assert "ExecStart=/opt/thresher/bin/thresher run --config /etc/thresher/relay.yaml" in text
    if analyze is None:
        return
    # Replace the program and the account by existing ones.
    unit = tmp_path / "thresher.service"
    unit.write_text(text.replace("/opt/thresher/bin/thresher", "/bin/true").replace("User=thresher", "User=root"))
    judged = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, timeout=150, check=False
    )
    assert (judged.returncode, judged.stderr) == (0, "")


def relay_container(name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config, deployment = yaml.safe_load_all((EXAMPLES / "sidecar" / name).read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = [
        each for each in [*pod.get("initContainers", []), *pod["containers"]] if each["name"] == "relay"
    ]  # fmt: skip
    return config, pod, container


@pytest.mark.parametrize("name", ["deployment.yaml", "sidecar.yaml"])
def test_a_pod_is_probed_where_the_relay_answers(name: str) -> None:
    config, pod, container = relay_container(name)
    relay = yaml.safe_load(config["data"]["relay.yaml"])
    host, _, port = relay["status"].rpartition(":")
    assert host == "0.0.0.0"  # noqa: S104 - a pod's own
    assert {"name": "relay", "containerPort": int(port)} in container["ports"]
    probes = {kind: probe for kind, probe in container.items() if kind.endswith("Probe")}
    for probe in probes.values():
        assert (probe["httpGet"]["path"] in {"/healthz", "/readyz"}, probe["httpGet"]["port"]) == (True, "relay")
    # A relay is not restarted because its servers fail.
    assert probes["livenessProbe"]["httpGet"]["path"] == probes["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert pod["terminationGracePeriodSeconds"] > longest_stop()
    assert container["args"][:2] == ["run", "--config"]


def test_only_a_standalone_relay_has_a_readiness_probe() -> None:
    _, _, alone = relay_container("deployment.yaml")
    assert alone["readinessProbe"]["httpGet"]["path"] == "/readyz"
    _, pod, beside = relay_container("sidecar.yaml")
    assert "readinessProbe" not in beside
    # A native sidecar of Kubernetes, which ends after the service.
    assert (beside["restartPolicy"], beside in pod["initContainers"]) == ("Always", True)


# The tracker's expressions.

OF_TRACKER = {family.name: family for family in (*ServiceMetrics(TRACKER_WORDING, servers=SERVERS).families, *OWN)}


def tracker_expressions() -> Iterator[str]:
    board = json.loads((EXAMPLES / "grafana" / "thresher-tracker.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("expression", [*tracker_expressions()])
def test_every_expression_about_a_tracker_uses_existing_metrics(expression: str) -> None:
    for metric in re.findall(r"thresher_\w+", expression):
        family = OF_TRACKER[metric]
        assert (family.kind is MetricKind.COUNTER) == bool(re.search(rf"(rate|increase)\({metric}\b", expression))
        asked = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
        assert asked <= set(family.labels)


def test_every_metric_of_a_tracker_is_shown_and_listed() -> None:
    shown = set(re.findall(r"thresher_\w+", " ".join(tracker_expressions())))
    assert {family.name for family in OWN} <= shown
    listed = set(re.findall(r"`(thresher_\w+)`", OPERATIONS.partition("### The tracker")[2]))
    assert {family.name for family in OWN} <= listed <= set(OF_TRACKER)
