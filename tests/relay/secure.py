"""How a client comes in by SASL_SSL with SCRAM, as a configuration file has it."""

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
    """How the batches of a topic are compressed, as its files have it: 0 not at all, 3 lz4."""
    found = set()
    for log in (stack.directory / "kafka-1" / "data").glob(f"{topic}-*/*.log"):
        content = log.read_bytes()
        while content:
            # Base offset, length, epoch of the leader, magic, checksum, attributes.
            length, attributes = int.from_bytes(content[8:12]), int.from_bytes(content[21:23])
            if not attributes & 0x20:  # not the end of a transaction
                found.add(attributes & 0x07)
            content = content[12 + length :]
    return found
