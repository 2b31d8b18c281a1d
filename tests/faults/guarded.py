"""Brokers behind proxies and with an authorizer, and an administrator who changes a relay's rights and topics."""

from collections.abc import Callable, Mapping
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

from tests.faults.proxied import PROXIED
from tests.processes import eventually
from thresher.devstack.broker import KafkaOptions, Listener

USER, PASSWORD = "relay", "secret"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}


def guarded(*ways: int, properties: Mapping[str, str] | None = None) -> KafkaOptions:
    """Return the options of a cluster whose one user connects through proxies, one per node, and has no rights yet."""
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    return KafkaOptions(
        nodes=len(ways),
        listeners=(Listener(name=PROXIED, advertised_ports=ways, security="SASL_PLAINTEXT"),),
        users={USER: PASSWORD},
        properties={
            "auto.create.topics.enable": "false",
            f"listener.name.{PROXIED.lower()}.plain.sasl.jaas.config": login,
            **(properties or {}),
        },
    )


class Guard:
    """The administrator of a guarded broker. Each call has taken effect on the broker when it returns.

    A broker learns of a change a little later than the controller. One of several brokers is asked.
    """

    def __init__(self, bootstrap: str, *, patience_seconds: float = 30.0) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._patience = patience_seconds

    def admit(self, prefix: str) -> None:
        """Let the user do everything with topics, transactional ids and groups under a prefix."""
        for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP):
            self.bind(acl_of(kind, prefix, ResourcePatternType.PREFIXED, AclOperation.ALL, AclPermissionType.ALLOW))

    def deny_topic(self, topic: str) -> None:
        """Revoke the right to write to a topic."""
        self.bind(_denial(ResourceType.TOPIC, topic))

    def allow_topic(self, topic: str) -> None:
        """Grant the right to write to a topic again."""
        self.unbind(_denial(ResourceType.TOPIC, topic))

    def deny_producers(self, prefix: str) -> None:
        """Revoke the right to use the transactional ids under a prefix."""
        self.bind(_denial(ResourceType.TRANSACTIONAL_ID, prefix))

    def allow_producers(self, prefix: str) -> None:
        """Grant the right to use the transactional ids under a prefix again."""
        self.unbind(_denial(ResourceType.TRANSACTIONAL_ID, prefix))

    def limit(self, topic: str, most_bytes: int | None) -> None:
        """Set the largest record batch that a topic accepts; None for the broker's default."""
        operation = AlterConfigOpType.DELETE if most_bytes is None else AlterConfigOpType.SET
        entry = ConfigEntry("max.message.bytes", str(most_bytes or ""), incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _all(self._client.incremental_alter_configs([resource], request_timeout=self._patience))

        def known() -> bool:
            asked = ConfigResource(ResourceType.TOPIC, topic)
            (answer,) = self._client.describe_configs([asked], request_timeout=self._patience).values()
            found = answer.result()["max.message.bytes"]
            return bool(found.is_default) if most_bytes is None else found.value == str(most_bytes)

        self._wait(known, f"the limit of {topic}")

    def bind(self, binding: AclBinding) -> None:
        """Add an ACL, and wait until the broker applies it."""
        _all(self._client.create_acls([binding], request_timeout=self._patience))
        self._wait(lambda: self._bound(binding), str(binding))

    def unbind(self, binding: AclBinding) -> None:
        """Remove an ACL, and wait until the broker no longer applies it."""
        _all(self._client.delete_acls([_only(binding)], request_timeout=self._patience))
        self._wait(lambda: not self._bound(binding), str(binding))

    def _bound(self, binding: AclBinding) -> bool:
        """Whether the broker applies an ACL: its own authorizer is asked."""
        return bool(self._client.describe_acls(_only(binding), request_timeout=self._patience).result())

    def _wait(self, known: Callable[[], bool], what: str) -> None:
        eventually(known, self._patience, lambda: f"the broker does not know {what}")


def _only(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host,
        binding.operation, binding.permission_type,
    )  # fmt: skip


def _denial(kind: ResourceType, name: str) -> AclBinding:
    pattern = ResourcePatternType.LITERAL if kind is ResourceType.TOPIC else ResourcePatternType.PREFIXED
    return acl_of(kind, name, pattern, AclOperation.WRITE, AclPermissionType.DENY)


def acl_of(
    kind: ResourceType,
    name: str,
    pattern: ResourcePatternType,
    operation: AclOperation,
    permission: AclPermissionType,
) -> AclBinding:
    """Return an ACL of the user who is guarded."""
    return AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, permission)


def _all(asked: Mapping[Any, Any]) -> None:
    for future in asked.values():
        future.result()
