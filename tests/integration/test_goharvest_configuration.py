"""A relay with a configuration file and a table that were made for goharvest."""

from pathlib import Path

import yaml
from psycopg import conninfo

from tests.relay.relaying import Place, Relaying
from tests.relay.secure import secure
from thresher.devstack.stack import Stack
from thresher.harvest.configuration import load
from thresher.outbox import Message, Shape
from thresher.spark.session.session import Session


def test_a_configuration_file_of_goharvest_relays_its_table(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, tmp_path: Path
) -> None:
    at = Place(stack, dsn, topic_prefix, shape=Shape.GOHARVEST)
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(100)))
    document = {
        "harvest": {
            "baseKafkaConfig": secure(stack),
            "producerKafkaConfig": {"compression.type": "lz4", "delivery.timeout.ms": 10000},
            "leaderTopic": f"{topic_prefix}leader",
            "leaderGroupID": f"{topic_prefix}relay",
            "dataSource": conninfo.make_conninfo(dsn, sslmode="disable"),
            "outboxTable": "public.Outbox",
            "limits": {"maxInFlightRecords": 10, "markQueryRecords": 50, "markBackoff": "2ms", "sendBuffer": 10},
        },
        "logging": {"level": "Info"},
    }
    path = tmp_path / "reaper.yaml"
    path.write_text(yaml.safe_dump(document))
    loaded = load(path, {}, warn=lambda _: None)
    with Relaying(loaded.settings, policy=loaded.policy) as relaying:
        messages = at.read(100)
        relaying.until(lambda: at.pending() == 0)
    for key in {message.key() for message in messages}:
        numbers = [int(message.value() or b"") for message in messages if message.key() == key]
        assert numbers == sorted(numbers)
