"""The configuration of queues: kafka-mq-go's keys, one report of all problems, and no secret in the report."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thresher.cli.form_command import add_form_command
from thresher.config.loading import Completed
from thresher.config.problem import ConfigurationInvalid
from thresher.config.setting import keys_of
from thresher.queue import QueueService
from thresher.queue.configuration import QUEUE_GUARDED, HandOff, QueueConfig, configured, load_queue_config

GIVEN: dict[str, Any] = {"bootstrap-servers": "kafka:9092", "message-topic": "messages", "marker-topic": "markers"}
# kafka-mq-go's settings under their YAML names, with its defaults.
SEED = """
bootstrap-servers: broker:9092
message-topic: messages
marker-topic: markers
redelivery-timeout: 60000
consumer-receive-buffer-capacity: 1
consumer-next-message-timeout: 1000
consumer-max-messages-per-commit: 1000
redelivery-tracker:
  use-now-if-no-marker-seen: 60000
  num-offsets-per-commit: 1000
"""
SECRET = "hunter2"


def problems(**keys: Any) -> str:
    """Return the report of problems with these keys beside valid ones. Keys have underscores here."""
    with pytest.raises(ConfigurationInvalid) as caught:
        configured(GIVEN | {key.replace("_", "-"): value for key, value in keys.items()})
    assert caught.value.exit_code == 2
    assert SECRET not in str(caught.value)
    return str(caught.value)


def loaded(text: str, tmp_path: Path, flags: dict[str, Any] | None = None, **variables: str) -> Completed[QueueConfig]:
    path = tmp_path / "queues.yaml"
    path.write_text(text)
    return load_queue_config(path, flags or {}, variables)


def test_a_file_of_kafka_mq_go_is_accepted(tmp_path: Path) -> None:
    form = loaded(SEED, tmp_path).form
    assert form.consumer_receive_buffer_capacity == 1
    tracker = {"use-now-if-no-marker-seen": 60_000, "num-offsets-per-commit": 1_000}
    keys = {"bootstrap-servers": "broker:9092", "consumer-receive-buffer-capacity": 1, "redelivery-tracker": tracker}
    assert form == configured(GIVEN | keys)


def test_defaults_are_the_originals_but_for_the_buffer() -> None:
    form = configured(GIVEN)
    assert (form.redelivery_timeout, form.consumer_next_message_timeout) == (60_000, 1_000)
    assert (form.consumer_max_messages_per_commit, form.consumer_receive_buffer_capacity) == (1_000, 500)
    assert form.redelivery_tracker == {}
    assert form.handoff is HandOff.EXACTLY_ONCE
    assert (form.dead_topic, form.queues_topic) == ("messages.dead", "markers.queues")


def test_every_problem_is_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        loaded(
            "bootstrap-servers: 'no such: place'\nmarker-topics: m\nmessage-topic: a b\nhandoff: twice\n"
            "redelivery-timeout: 43200001\nconsumer-receive-buffer-capacity: 0\nsend-timeout: soon\n"
            "redelivery-tracker: soon\nkafka: {isolation.level: read_uncommitted, sasl.pasword: hunter2}\n",
            tmp_path,
        )  # fmt: skip
    text = str(caught.value)
    for part in (
        "bootstrap-servers: HOST:PORT is needed", "marker-topics: there is no such key, did you mean 'marker-topic'?",
        "message-topic: 1 to 242 of the characters", "handoff: ", "redelivery-timeout: ",
        "consumer-receive-buffer-capacity: ", "send-timeout: ", "redelivery-tracker: keys with their values are needed",
        "kafka.isolation.level: the guarantee of queues depends on", "marker-topic: it is missing",
        "kafka.sasl.pasword: there is no such key, did you mean 'sasl.password'?",
    ):  # fmt: skip
        assert part in text
    assert len(text.splitlines()) == 12, text
    assert SECRET not in text


def test_an_empty_configuration_misses_every_required_key() -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        configured({})
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == list(GIVEN)


@pytest.mark.parametrize(
    ("milliseconds", "taken"), [(9, False), (10, True), (43_200_000, True), (43_200_001, False), (-1, False)]
)
def test_a_redelivery_timeout_has_twelve_hours_at_most(milliseconds: int, taken: bool) -> None:
    if taken:
        assert configured(GIVEN | {"redelivery-timeout": milliseconds}).redelivery_seconds == milliseconds / 1000
    else:
        assert "redelivery-timeout: " in problems(redelivery_timeout=milliseconds)


@pytest.mark.parametrize("topic", ["a b", "a/b", "..", ".", "ä", "x" * 243, "a\n"])
def test_an_invalid_topic_name_is_refused(topic: str) -> None:
    assert "marker-topic: 1 to 242 of the characters" in problems(marker_topic=topic)


def test_messages_and_markers_need_two_topics() -> None:
    assert "marker-topic: it is also the message-topic" in problems(marker_topic="messages")


@pytest.mark.parametrize("section", ["kafka", "producer", "consumer"])
@pytest.mark.parametrize("name", sorted(QUEUE_GUARDED))
def test_properties_that_the_guarantee_rests_on_are_refused(name: str, section: str) -> None:
    assert f"{section}.{name}: the guarantee of queues depends on" in problems(**{section: {name: 1}})


def test_names_that_mean_the_same_property_are_refused() -> None:
    assert {
        "isolation.level", "enable.idempotence", "acks", "transactional.id", "transaction.timeout.ms", "group.id",
        "enable.auto.commit", "auto.offset.reset", "partitioner",
    } <= QUEUE_GUARDED  # fmt: skip
    assert "producer.topic.acks: the guarantee" in problems(producer={"topic.acks": 1})


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_a_broker_is_named_in_one_place(name: str) -> None:
    assert f"kafka.{name}: the broker is named by 'bootstrap-servers'" in problems(kafka={name: "other:9092"})


@pytest.mark.parametrize("key", ["max_deliveries_by_queue", "ttl_by_queue"])
def test_limits_by_queue_are_whole_numbers(key: str) -> None:
    for wrong in (0, -1, "1s"):
        assert f"q: a whole number from 1 up is needed, not {wrong}" in problems(**{key: {"q": wrong}})
    assert getattr(configured(GIVEN | {key: {"q": "3"}}), key) == {"q": 3}


def test_the_trackers_section_is_ignored_by_clients(tmp_path: Path) -> None:
    variables = {"THRESHER_REDELIVERY_TRACKER": "num-offsets-per-commit=5"}
    form = loaded(f"{json.dumps(GIVEN)}", tmp_path, {"redelivery-tracker": None}, **variables).form
    assert form.redelivery_tracker == {"num-offsets-per-commit": "5"}


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    form = loaded(
        SEED + "kafka: {client.id: file, client.rack: file}\n",
        tmp_path,
        {"message-topic": "flag", "marker-topic": None},
        THRESHER_MESSAGE_TOPIC="environment", THRESHER_MARKER_TOPIC="environment", THRESHER_MAX_IN_PROGRESS="7",
        THRESHER_CONSUMER_NEXT_MESSAGE_TIMEOUT="5", THRESHER_KAFKA_CLIENT_ID="environment",
        THRESHER_CONSUMER_FETCH_MIN_BYTES="9", THRESHER_PRODUCER="linger.ms=3",
    ).form  # fmt: skip
    assert (form.message_topic, form.marker_topic, form.bootstrap_servers) == ("flag", "environment", "broker:9092")
    assert (form.max_in_progress, form.consumer_next_message_timeout) == (7, 5)
    assert form.clients == {
        "client.id": "environment", "client.rack": "file", "bootstrap.servers": "broker:9092",
    }  # fmt: skip
    assert (form.consumer, form.producer) == ({"fetch.min.bytes": "9"}, {"linger.ms": "3"})


def test_in_code_keys_have_underscores_or_hyphens() -> None:
    plain = {key.replace("-", "_"): value for key, value in GIVEN.items()}
    assert configured(plain) == configured(GIVEN) == configured(QueueConfig(**plain))
    with QueueService({**plain, "redelivery_timeout": 10}) as service:
        assert service.config.redelivery_timeout == 10
    with pytest.raises(ConfigurationInvalid, match="redelivery-timeouts: there is no such key"):
        QueueService({**plain, "redelivery_timeouts": 10})


def test_every_key_has_its_flag_and_variable() -> None:
    app, given = typer.Typer(), dict[str, Any]()

    def take(*, flags: dict[str, Any]) -> None:
        given.update(flags)

    add_form_command(app, "take", take, lambda: QueueConfig)
    app.command("other")(lambda: None)
    arguments = ["take", "--message-topic", "m", "--handoff", "at-least-once", "--consumer", "fetch.min.bytes=1"]
    answer = CliRunner().invoke(app, arguments, env={"THRESHER_BOOTSTRAP_SERVERS": "k:1", "THRESHER_SEND_TIMEOUT": "5"})
    assert answer.exit_code == 0, answer.output
    assert set(given) == set(keys_of(QueueConfig))
    assert (given["message-topic"], given["handoff"], given["bootstrap-servers"]) == ("m", "at-least-once", "k:1")
    assert (given["send-timeout"], given["consumer"]) == (5, {"fetch.min.bytes": "1"})


def test_no_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    sasl = "security.protocol: sasl_plaintext, sasl.mechanism: PLAIN, sasl.username: me"
    done = loaded(
        f"{SEED}kafka: {{{sasl}, sasl.password: {SECRET}}}\nconsumer: {{ssl.key.password: {SECRET}}}\n",
        tmp_path,
        THRESHER_PRODUCER_SASL_PASSWORD_FILE=str(tmp_path / "password"),
    )
    assert done.form.producer == {"sasl.password": SECRET} == {"sasl.password": done.form.kafka["sasl.password"]}
    in_code = {"kafka": {"sasl.password": {"file": str(tmp_path / "password")}}}
    assert configured(GIVEN | in_code).kafka == {"sasl.password": SECRET}
    service = QueueService(done.form)
    queue = service.queue("q")
    for shown in (done, done.form, done.shown, service, queue, service.config):
        assert SECRET not in f"{shown!r} {shown}", type(shown)
    assert SECRET not in done.secrets.mask(f"failed with {SECRET}")
    service.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kafka": {"sasl.password": [SECRET]}},
        {"kafka": SECRET},
        {"kafka": {"sasl.password": SECRET}, "producer": {"linger.ms": SECRET}},
        {"kafka": {"security.protocol": "sasl_plaintext", "sasl.password": SECRET, "sasl.mechanism": SECRET}},
        {"kafka": {"security.protocol": "ssl", "ssl.key.pem": SECRET, "ssl.key.password": SECRET}},
        {"redelivery_timeout": SECRET},
        {"handoff": SECRET},
    ],
)
def test_a_secret_at_the_wrong_place_is_not_repeated(wrong: dict[str, Any]) -> None:
    assert problems(**wrong)


def test_a_broken_file_names_its_place(tmp_path: Path) -> None:
    for text, why in (("a: [", "line 1"), ("- a", "keys with values are needed"), ("a: 1\na: 2\n", "there twice")):
        with pytest.raises(ConfigurationInvalid, match=why):
            loaded(text, tmp_path)
    with pytest.raises(ConfigurationInvalid, match="cannot be read"):
        load_queue_config(tmp_path / "nowhere.yaml", {}, os.environ)
