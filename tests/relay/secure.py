"""The properties of a client that connects by SASL_SSL with SCRAM, as in a configuration file."""

from typing import Any

from thresher.devstack.broker import SECURE
from thresher.devstack.stack import Stack

USER, PASSWORD = "alice", "alice-secret"


def secure(stack: Stack, **changes: Any) -> dict[str, Any]:
    """The client's properties for the run's broker."""
    assert stack.kafka.certificate is not None
    return {
        "bootstrap.servers": stack.kafka.bootstrap_of(SECURE),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(stack.kafka.certificate.authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        **changes,
    }


def codecs(stack: Stack, topic: str) -> set[int]:
    """The compression codes of a topic's batches, read from its segment files: 0 none, 3 lz4."""
    found = set()
    for log in (stack.directory / "kafka-1" / "data").glob(f"{topic}-*/*.log"):
        content = log.read_bytes()
        while content:
            # The header of a record batch: base offset, length, leader epoch, magic, checksum, attributes.
            length, attributes = int.from_bytes(content[8:12]), int.from_bytes(content[21:23])
            if not attributes & 0x20:  # not a transaction's end marker
                found.add(attributes & 0x07)
            content = content[12 + length :]
    return found
