"""The example of a relay with SASL authentication and TLS, run against a broker."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.processes import environment, eventually
from tests.relay.relaying import Place
from tests.relay.secure import PASSWORD, codecs, secure
from thresher.devstack.stack import Stack
from thresher.outbox import Message

EXAMPLES = Path(__file__).parents[2] / "examples"
# Measured: 6 s until the rows arrive.
UP_SECONDS = 90.0


def test_rows_go_by_sasl_ssl_with_scram_and_lz4(stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path) -> None:
    at = Place(stack, dsn, topic_prefix, table="billing_outbox")
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(200)))
    (tmp_path / "data-source").write_text(f"{dsn}\n")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    broker = secure(stack)
    told = environment(
        THRESHER_NAME=f"{topic_prefix}relay",
        THRESHER_DS_FILE=str(tmp_path / "data-source"),
        THRESHER_KAFKA_SSL_CA_LOCATION=broker["ssl.ca.location"],
        THRESHER_KAFKA_SASL_USERNAME=broker["sasl.username"],
        THRESHER_KAFKA_SASL_PASSWORD_FILE=str(tmp_path / "password"),
    )
    file = tmp_path / "relay.yaml"
    file.write_text((EXAMPLES / "sasl_ssl.yaml").read_text().replace("kafka:9094", broker["bootstrap.servers"]))
    log = tmp_path / "log"
    with log.open("wb") as written:
        program = [sys.executable, str(EXAMPLES / "sasl_ssl.py"), str(file)]
        relay = subprocess.Popen(program, cwd=tmp_path, env=told, stdout=written, stderr=written)
    try:
        values = {message.value() for message in at.read(200, seconds=UP_SECONDS)}
        # A row that was sent may not be settled yet, and a stop need not settle it.
        eventually(lambda: at.pending() == 0, UP_SECONDS, log.read_text)
        os.kill(relay.pid, signal.SIGTERM)
        assert relay.wait(60) == 0, log.read_text()
    finally:
        relay.kill()
        relay.wait()
    assert values == {str(n).encode() for n in range(200)}
    assert codecs(stack, at.topic) == {3}
    assert PASSWORD not in log.read_text()
