"""A relay and a broker that wants to know who comes, over a line that nobody else reads."""

from pathlib import Path

import yaml

from tests.relay.relaying import Place, Relaying
from tests.relay.secure import PASSWORD, codecs, secure
from thresher.devstack.stack import Stack
from thresher.harvest.configuration import load
from thresher.outbox import Message
from thresher.spark.session import Session


def test_rows_go_by_sasl_ssl_with_scram_and_lz4(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, tmp_path: Path
) -> None:
    at = Place(stack, dsn, topic_prefix)
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(200)))
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    path = tmp_path / "relay.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": f"{topic_prefix}relay",
                "data_source": dsn,
                "kafka": secure(stack, **{"sasl.password": {"file": str(password)}}),
                "producer": {"compression.type": "lz4", "linger.ms": 5},
            }
        )
    )
    loaded = load(path, {})
    with Relaying(loaded.settings, policy=loaded.policy) as relaying:
        values = {message.value() for message in at.read(200)}
        relaying.until(lambda: at.pending() == 0)
    assert values == {str(n).encode() for n in range(200)}
    assert codecs(stack, at.topic) == {3}
