"""The table of the permissions page: each program does its job with its rows alone, and needs each of them.

The cases are made from the page, so that page and test cannot part.
"""

import re
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.faults.guarded import Guard
from tests.faults.permission_table import Right, granted
from tests.faults.permitted import RIGHTS, ROLES, Role, Scene, lock, receive, track
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.spark.session.session import Session

# What an error or an alarm says of a missing right on a resource of this kind.
_NAMED = {
    "Topic": r"[Tt]opic|may not write to it",
    "Group": r"[Gg]roup",
    "TransactionalId": r"[Tt]ransactional",
}
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


@pytest.fixture
def scene(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Scene:
    return Scene(stack, dsn, topic_prefix)


def does_its_job(scene: Scene, role: Role, *, without: Right | None = None) -> None:
    """Do a program's job with its rights. Raises what the program raises."""
    work = role.job(scene)
    given = [right for right in role.rights() if right != without]
    with granted(Guard(scene.stack.kafka.bootstrap), given, scene.names) if given else nullcontext():
        work()


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.program)
def test_a_program_does_its_job_and_nothing_else_with_its_rows_alone(scene: Scene, role: Role) -> None:
    work = role.job(scene)
    with granted(Guard(scene.stack.kafka.bootstrap), role.rights(), scene.names):
        work()
        attack(scene, role)


def needed() -> list[Any]:
    """Return each right of each program without which the program cannot do its job."""
    return [
        pytest.param(role, right, id=f"{role.program}: {right.operation} on {right.kind} {right.name}")
        for role in ROLES
        for right in role.rights()
        if right.program == role.program and not right.spare
    ]


@pytest.mark.parametrize(("role", "missing"), needed())
def test_a_missing_right_is_named(scene: Scene, role: Role, missing: Right) -> None:
    with pytest.raises(Exception, match=_NAMED[missing.kind]) as caught:
        does_its_job(scene, role, without=missing)
    assert not re.search("not within .* s", str(caught.value)), "the program says nothing"
    assert re.search("uthoriz|may not|grant|hidden", str(caught.value)), caught.value


@pytest.mark.parametrize("role", [role for role in ROLES if role.spare()], ids=lambda role: role.program)
def test_a_program_works_without_the_rights_in_brackets(scene: Scene, role: Role) -> None:
    scene.whole = False
    work = role.job(scene)
    with granted(Guard(scene.stack.kafka.bootstrap), [each for each in role.rights() if not each.spare], scene.names):
        work()


def test_every_row_of_the_table_has_a_program_here() -> None:
    assert {right.program for right in RIGHTS} == {role.program for role in ROLES}
    assert len(RIGHTS) > 50


def test_topic_locks_need_the_rows_of_a_relay(scene: Scene) -> None:
    does_its_job(scene, Role("relay", lock))


def test_at_least_once_consumers_need_no_transactional_id(scene: Scene) -> None:
    work = receive(scene, handoff="at-least-once")
    rights = [right for right in Role("queue consumer", receive).rights() if right.kind != "TransactionalId"]
    with granted(Guard(scene.stack.kafka.bootstrap), rights, scene.names):
        work()


def test_a_tracker_with_neli_needs_both_rows(scene: Scene) -> None:
    role = Role("tracker", track, also=("tracker, with `election: neli`",))
    work = track(scene, election="neli")
    with granted(Guard(scene.stack.kafka.bootstrap), role.rights(), scene.names):
        work()


def attack(scene: Scene, role: Role) -> None:
    """Try what the table does not say: on each topic of the program, on groups, and on transactional ids."""
    rights = role.rights()
    admin = Admin.of(scene.login)
    there = set(Admin(scene.stack.kafka.bootstrap).names())
    for topic in sorted(scene.topics() & there):
        found = admin.facts([topic])[topic]
        if isinstance(found, KafkaError):
            # Clients would wait for a topic that is hidden as a whole.
            assert found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, topic
            continue
        may = {right.operation for right in rights if right.kind == "Topic" and topic in right.named(scene.names)}
        if "Write" not in may:
            assert written(scene, topic).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, topic
        if "Read" not in may:
            assert refused(lambda topic=topic: scene.fetch(topic)), f"reads {topic}"
        if "Delete" not in may:
            assert refused(lambda topic=topic: admin.delete_topics([topic])), f"deletes {topic}"
            assert refused(lambda topic=topic: deleted(admin, topic)), f"removes records of {topic}"
        if "Alter" not in may:
            assert refused(lambda topic=topic: admin.widen_topic(topic, 9)), f"widens {topic}"
        assert refused(lambda topic=topic: configured(admin, topic)), f"configures {topic}"
    assert refused(lambda: admin.create_topic(f"{scene.prefix}more"))
    assert refused(lambda: scene.begin(f"other-{scene.prefix}"))
    assert refused(lambda: scene.commit(f"other-{scene.prefix}"))


def refused(what: Any) -> bool:
    """Whether the broker refuses this for want of a right."""
    try:
        what()
    except KafkaException as error:
        if error.args[0].code() not in _REFUSED:
            raise
        return True
    return False


def deleted(admin: Admin, topic: str) -> None:
    for future in admin.client.delete_records([TopicPartition(topic, 0, 0)], request_timeout=30).values():
        future.result()


def configured(admin: Admin, topic: str) -> None:
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.client.incremental_alter_configs([asked], request_timeout=30).values():
        future.result()


def written(scene: Scene, topic: str) -> KafkaError:
    """Return the error by which a topic refuses the account's record."""
    producer = Producer({**scene.login, "log_level": 0})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"forged", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    (error,) = errors
    assert error is not None
    return error
