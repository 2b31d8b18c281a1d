"""A broker behind a proxy and with an authorizer, and what its administrator does to a relay's rights and topics."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from thresher.devstack.broker import KafkaOptions, Listener

PROXIED = "PROXIED"
USER, PASSWORD = "relay", "secret"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}
_REQUEST_SECONDS = 5.0


def guarded(port: int, properties: Mapping[str, str] | None = None) -> KafkaOptions:
    """How a broker is set up whose one user comes in through a proxy at that port, and may do nothing yet."""
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    return KafkaOptions(
        listeners=(Listener(name=PROXIED, advertised_ports=(port,), security="SASL_PLAINTEXT"),),
        users={USER: PASSWORD},
        properties={
            "auto.create.topics.enable": "false",
            f"listener.name.{PROXIED.lower()}.plain.sasl.jaas.config": login,
            **(properties or {}),
        },
    )


class Guard:
    """The administrator of a guarded broker. Each call has taken effect on the controller when it returns."""

    def __init__(self, bootstrap: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap})

    def admit(self, prefix: str) -> None:
        """Let the user do everything with topics, transactional ids and groups under a prefix."""
        for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP):
            self._bind(_binding(kind, prefix, ResourcePatternType.PREFIXED, AclOperation.ALL, AclPermissionType.ALLOW))

    def deny_topic(self, topic: str) -> None:
        """Take the right to write to a topic away."""
        self._bind(_denial(ResourceType.TOPIC, topic))

    def allow_topic(self, topic: str) -> None:
        """Give the right to write to a topic back."""
        self._unbind(_denial(ResourceType.TOPIC, topic))

    def deny_producers(self, prefix: str) -> None:
        """Take the right to use the transactional ids under a prefix away."""
        self._bind(_denial(ResourceType.TRANSACTIONAL_ID, prefix))

    def allow_producers(self, prefix: str) -> None:
        """Give the right to use the transactional ids under a prefix back."""
        self._unbind(_denial(ResourceType.TRANSACTIONAL_ID, prefix))

    def limit(self, topic: str, most_bytes: int | None) -> None:
        """Set the largest batch that a topic takes; None for the broker's default."""
        operation = AlterConfigOpType.DELETE if most_bytes is None else AlterConfigOpType.SET
        entry = ConfigEntry("max.message.bytes", str(most_bytes or ""), incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _all(self._client.incremental_alter_configs([resource], request_timeout=_REQUEST_SECONDS))

    def _bind(self, binding: AclBinding) -> None:
        _all(self._client.create_acls([binding], request_timeout=_REQUEST_SECONDS))

    def _unbind(self, binding: AclBinding) -> None:
        wanted = AclBindingFilter(
            binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host,
            binding.operation, binding.permission_type,
        )  # fmt: skip
        _all(self._client.delete_acls([wanted], request_timeout=_REQUEST_SECONDS))


def _denial(kind: ResourceType, name: str) -> AclBinding:
    pattern = ResourcePatternType.LITERAL if kind is ResourceType.TOPIC else ResourcePatternType.PREFIXED
    return _binding(kind, name, pattern, AclOperation.WRITE, AclPermissionType.DENY)


def _binding(
    kind: ResourceType,
    name: str,
    pattern: ResourcePatternType,
    operation: AclOperation,
    permission: AclPermissionType,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, permission)


def _all(asked: Mapping[Any, Any]) -> None:
    for future in asked.values():
        future.result()
