"""`thresher config`, and the errors of a misconfigured relay: they name every mistake and show no secret."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg import conninfo

from tests.in_process import thresher_text
from tests.processes import environment, eventually
from tests.relay.secure import secure
from thresher.cli.config import Pipeline, check
from thresher.config.problem import ConfigurationInvalid
from thresher.devstack.stack import Stack

SECRET = "hunter2"
NOT_FOUND = "ModuleNotFoundError: No module named 'orders_relai'"
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
REAPER = f"""
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9092
    security.protocol: sasl_plaintext
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: alice
    sasl.password: {SECRET}
  leaderTopic: billing
  leaderGroupID: billing
  dataSource: host=localhost port=5432 user=postgres password={SECRET} sslmode=disable
  outboxTable: outbox
  limits:
    sendBuffer: 10
logging:
  level: Info
"""


def thresher(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    answer = thresher_text(*arguments, **options)
    assert SECRET not in answer.stdout + answer.stderr
    return answer


def test_a_goharvest_file_is_checked_and_printed_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "reaper.yaml"
    path.write_text(REAPER)
    checked = thresher("config", "check", "-c", str(path))
    assert checked.returncode == 0, checked.stderr
    assert (
        'the configuration can work: relay billing of "outbox", at-least-once, shards 1, election neli'
        in checked.stdout
    )
    assert "harvest.limits.sendBuffer is accepted without effect" in checked.stderr
    ours = yaml.safe_load(thresher("config", "print", "-c", str(path), THRESHER_SHARDS="3").stdout)
    assert (ours["shards"], ours["leader_group"], ours["kafka"]["sasl.password"]) == (3, "billing", "***")
    path.write_text(yaml.safe_dump(ours))
    assert ours == json.loads(thresher("config", "print", "--json", "-c", str(path)).stdout), "it is a file of ours"


def test_one_report_holds_every_mistake_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(f"shard: 3\nsettle: burn\ndata_source: postgresql://u:{SECRET}@db:x/y\nkafka: {{acks: 1}}\n")
    for command in (["config", "check"], ["run"]):
        answer = thresher(*command, "-c", str(path), THRESHER_KAFKA_SASL_PASSWORD_FILE="/no/such/file")
        assert answer.returncode == 2
        assert not answer.stdout
        for part in (
            "shard: there is no such key, did you mean 'shards'?", "settle: ", "name: it is missing", "data_source: ",
            "kafka.acks: exactly-once depends on", "kafka.sasl.password: the file /no/such/file cannot be read",
        ):  # fmt: skip
            assert part in answer.stderr


def test_a_check_imports_the_functions_and_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "orders_relay.py").write_text("def no_drafts(batch):\n    return batch\n")
    path = tmp_path / "relay.yaml"
    least = f"name: orders\ndata_source: postgresql://u:{SECRET}@db/shop\nkafka: {{bootstrap.servers: k:1}}\n"
    path.write_text(f"{least}transform: [orders_relay:no_drafts]\n")
    checked = thresher("config", "check", "-c", str(path), "--json", cwd=tmp_path)
    told = json.loads(checked.stdout)
    assert (checked.returncode, checked.stderr, told["works"]) == (0, "", True)
    assert (told["name"], told["outbox"], told["functions"]) == ("orders", '"outbox"', ["orders_relay:no_drafts"])

    wrong = "orders_relai:no_drafts, orders_relay:some_drafts"
    path.write_text(f"{least}transform: [{wrong}]\n")
    answer = thresher("config", "check", "-c", str(path), cwd=tmp_path, THRESHER_SHARD="3")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "THRESHER_SHARD: it is not read, did you mean 'THRESHER_SHARDS'?" in answer.stderr
    assert f"orders_relai:no_drafts cannot be imported: {NOT_FOUND}; looked in " in answer.stderr
    assert f", {tmp_path}\n" in answer.stderr
    assert "orders_relay:some_drafts cannot be imported: orders_relay has no some_drafts" in answer.stderr
    answer = thresher("config", "check", "-c", str(path), "--json", cwd=tmp_path, THRESHER_SHARD="3")
    told = json.loads(answer.stdout)
    assert (answer.returncode, told["works"]) == (2, False)
    assert [problem["key"] for problem in told["problems"]] == ["transform", "transform", "THRESHER_SHARD"]


@pytest.mark.parametrize("command", [["-m", "thresher"], [str(Path(sys.executable).with_name("thresher"))]])
def test_no_module_of_the_working_directory_is_imported(tmp_path: Path, command: list[str]) -> None:
    planted, etc = tmp_path / "planted", tmp_path / "etc"
    for place in (planted, etc):
        place.mkdir()
        for module in ("typer", "pyarrow", "yaml", "drafts"):
            (place / f"{module}.py").write_text("raise SystemExit('PLANTED')\n")
    (etc / "drafts.py").write_text("import pyarrow\n\ndef dropped(batch):\n    return batch\n")
    least = "name: orders\ndata_source: host=db\nkafka: {bootstrap.servers: k:1}\ntransform: drafts:dropped\n"
    (etc / "relay.yaml").write_text(least)

    def check() -> "subprocess.CompletedProcess[str]":
        told = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        words = [sys.executable, *command, "config", "check", "-c", "../etc/relay.yaml"]
        return subprocess.run(words, cwd=planted, env=told, capture_output=True, text=True, check=False)

    found = check()
    assert (found.returncode, found.stderr) == (0, "")
    for mode, culprit in ((0o777, etc), (0o666, etc / "drafts.py")):
        culprit.chmod(mode)
        refused = check()
        assert refused.returncode == 2
        assert f"functions are not looked for in {etc}: every user may write to {culprit}" in refused.stderr
        assert "No module named 'drafts'" in refused.stderr
        culprit.chmod(0o755)


def test_no_module_of_a_package_that_others_may_write_is_imported(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    shop = etc / "company" / "shop"
    shop.mkdir(parents=True)
    (etc / "company" / "__init__.py").touch()
    (shop / "drafts.py").write_text("from company.shop import rules\n\ndef dropped(batch):\n    return batch\n")
    (shop / "rules.py").touch()
    path = etc / "relay.yaml"
    path.write_text(
        "name: orders\ndata_source: host=db\nkafka: {bootstrap.servers: k:1}\ntransform: company.shop.drafts:dropped\n"
    )

    def check() -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-m", "thresher", "config", "check", "-c", str(path)]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    # The second time, bytecode is cached.
    assert [check().returncode for _ in range(2)] == [0, 0]
    for culprit in (etc / "company" / "__init__.py", shop, shop / "drafts.py", shop / "rules.py", shop / "__pycache__"):
        mode = culprit.stat().st_mode
        culprit.chmod(0o777)
        refused = check()
        assert refused.returncode == 2, culprit
        assert f"is not imported: every user may write to {culprit}" in refused.stderr
        culprit.chmod(mode)


def test_a_check_imports_functions_despite_other_mistakes(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text("print('imported')\n\ndef no_drafts(batch):\n    return batch\n")
    path = tmp_path / "relay.yaml"
    path.write_text("shards: true\nkafka: nonsense\ntransform: [nowhere, 'noisy:some_drafts', 'orders_relai:f']\n")
    answer = thresher("config", "check", "-c", str(path), "--json", cwd=tmp_path, THRESHER_BOOTSTRAP="k:1")
    assert answer.returncode == 2
    assert "imported" in answer.stderr
    problems = [(each["key"], each["why"].partition(";")[0]) for each in json.loads(answer.stdout)["problems"]]
    for expected in (
        ("shards", "a whole number is needed, not True"),
        ("kafka", "properties with their values are needed"),
        ("transform", "'nowhere' is not of the form package.module:function"),
        ("transform", "noisy:some_drafts cannot be imported: noisy has no some_drafts"),
        ("transform", f"orders_relai:f cannot be imported: {NOT_FOUND}"),
    ):
        assert expected in problems


def test_an_unimportable_transform_ends_a_run_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(
        "name: orders\ndata_source: host=db\nkafka: {bootstrap.servers: k:1}\nstatus: off\ntransform: orders_relai:f\n"
    )
    for command in (["config", "check"], ["run"]):
        answer = thresher(*command, "-c", str(path), cwd=tmp_path)
        assert answer.returncode == 2
        assert f"transform: orders_relai:f cannot be imported: {NOT_FOUND}" in answer.stderr


@pytest.mark.parametrize(
    ("key", "pipeline"),
    [
        ("slot: s", "tail"),
        ("topics: {t: {handler: m:f}}", "capture"),
        ("message-topic: m", "queue"),
        ("settle: stamp", "relay"),
    ],
)
def test_the_keys_of_a_file_decide_its_pipeline(tmp_path: Path, key: str, pipeline: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(f"{key}\nshards: 0\n")
    told = json.loads(thresher("config", "check", "-c", str(path), "--json", cwd=tmp_path).stdout)
    assert told["pipeline"] == pipeline
    assert not [each for each in told["problems"] if "no such key" in each["why"]]
    own = key.partition(":")[0]
    remark = f"checked as the file of a {pipeline}, because of its keys ({own}): --pipeline overrides this"
    assert told["remarks"] == ([] if pipeline == "relay" else [remark])


def test_files_of_tails_and_captures_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "pipeline.yaml"
    least = "name: orders\ndata_source: host=db\nkafka: {bootstrap.servers: k:1}\n"
    path.write_text(f"{least}topics: {{orders: {{handler: orders_relai:no_drafts}}}}\n")
    with pytest.raises(ConfigurationInvalid, match=r"topics.orders.handler: orders_relai:no_drafts cannot be imported"):
        check(path, Pipeline.CAPTURE)
    path.write_text(f"{least}transform: [orders_relai:no_drafts]\n")
    with pytest.raises(ConfigurationInvalid, match=f"{NOT_FOUND}; looked in .*, {tmp_path}"):
        check(path, Pipeline.TAIL)


def test_a_queues_file_is_checked_with_its_trackers_keys(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    least = "bootstrap-servers: k:1\nmessage-topic: messages\nmarker-topic: markers\n"
    path.write_text(least)
    checked = thresher("config", "check", "-c", str(path))
    assert (checked.returncode, "queues of messages, markers in markers" in checked.stdout) == (0, True), checked.stderr
    told = json.loads(thresher("config", "check", "-c", str(path), "--json").stdout)
    assert (told["pipeline"], told["message_topic"], told["marker_topic"]) == ("queue", "messages", "markers")
    path.write_text(f"{least}redelivery-tracker: {{shard: 2}}\nttl: soon\n")
    refused = thresher("config", "check", "-c", str(path))
    assert refused.returncode == 2
    for part in ("redelivery-tracker.shard: there is no such key, did you mean 'shards'?", "ttl: "):
        assert part in refused.stderr
    assert "data_source" not in refused.stderr


def test_a_misconfigured_program_reports_the_same_mistakes_as_the_command(tmp_path: Path) -> None:
    source = (PAGE.parents[1] / "examples" / "basic.py").read_text()
    wrong = source.replace('outbox="outbox",', 'outbox="shop.outbox", shards="many", transforms="nonsense",')
    (tmp_path / "program.py").write_text(wrong)
    told = environment(THRESHER_DS=f"host=nowhere password={SECRET}", THRESHER_BOOTSTRAP="nowhere:9092")
    answer = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=told, capture_output=True, text=True, check=False, timeout=150
    )
    assert answer.returncode == 2, answer.stderr
    for part in (
        "the configuration cannot work:\n", "outbox: give outbox='outbox', schema='shop'", "shards: ",
        "transform: 'nonsense' is not of the form package.module:function",
    ):  # fmt: skip
        assert part in answer.stderr
    assert "Traceback" not in answer.stderr
    assert SECRET not in answer.stderr


def test_every_command_names_a_misspelt_environment_variable() -> None:
    answer = thresher("schema", "print", THRESHER_OUTBX="orders")
    assert answer.returncode == 0
    assert answer.stderr == "THRESHER_OUTBX is not read, did you mean 'THRESHER_OUTBOX'?\n"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_of_a_relay_in_trouble_shows_a_secret(stack: Stack, tmp_path: Path, log_format: str) -> None:
    config: dict[str, Any] = {
        "name": "relay", "data_source": f"postgresql://relay:{SECRET}@nowhere.invalid/shop", "log_format": log_format,
        "kafka": secure(stack, **{"sasl.password": SECRET, "debug": "security,broker"}), "status": "off",
    }  # fmt: skip
    path = tmp_path / "relay.yaml"
    path.write_text(json.dumps(config))
    log = tmp_path / "log"
    with log.open("wb") as written:
        command = [sys.executable, "-m", "thresher", "run", "--verbose", "-c", str(path)]
        relay = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=written, stderr=written)
    try:
        eventually(lambda: log.read_text().count("nowhere.invalid") > 1, 90, log.read_text)
        os.kill(relay.pid, signal.SIGTERM)
        assert relay.wait(120) == 0
    finally:
        relay.kill()
        relay.wait()
    assert SECRET not in log.read_text()
    if log_format == "json":
        # Every line: also Spark's, the client's debug output, and the last one.
        assert [json.loads(line)["level"] for line in log.read_text().splitlines()]


def test_a_password_that_is_refused_is_not_shown(stack: Stack, dsn: str, tmp_path: Path) -> None:
    thresher("schema", "create", "--ds", dsn)
    path = tmp_path / "relay.yaml"
    for data_source, kafka, why in (
        (conninfo.make_conninfo(dsn, password=SECRET), secure(stack), "password authentication failed"),
        (dsn, secure(stack, **{"sasl.password": SECRET}), "uthentication"),
    ):
        keys = {
            "name": "relay",
            "data_source": data_source,
            "kafka": kafka,
            "status": "off",
            "log_format": "json",
            "grace_seconds": 1,
        }
        path.write_text(json.dumps(keys))
        # A process: what C and Java write is seen too.
        command = [sys.executable, "-m", "thresher", "run", "--verbose", "-c", str(path)]
        answer = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        assert answer.returncode == 4, answer.stderr
        assert SECRET not in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr
        *_, last = [json.loads(line) for line in answer.stderr.splitlines()]
        assert (last["level"], why in last["message"]) == ("error", True), last


def test_the_documented_program_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "relay.yaml").write_text(REAPER)
    program += "logging.getLogger(__name__).warning('it is %s', loaded.settings.kafka)\n"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True,
        timeout=150,
    )  # fmt: skip
    assert "'sasl.password': Secret('***')" in answer.stderr
    assert SECRET not in answer.stderr
