"""A leader's watch notices changes to the conditions that its take-over has checked."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.processes import eventually
from tests.relay.relaying import Place, taken_over
from thresher.core.errors import PipelineProblem
from thresher.db.problem import DatabaseRefused
from thresher.delivery.names import progress_topic
from thresher.delivery.problem import ForeignProgress
from thresher.devstack.stack import Stack
from thresher.kafka.problem import BrokerRefused
from thresher.outbox import Message
from thresher.relay.leader import watch as watch_module
from thresher.relay.leader.watch import RelayWatch
from thresher.spark.session.session import Session


@pytest.fixture
def at(stack: Stack, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.fixture
def watch(at: Place) -> Iterator[RelayWatch]:
    """Yield the watch of a leader that has just taken over."""
    with closing(RelayWatch(taken_over(at.settings(shards=1)))) as opened:
        yield opened


def look(watch: RelayWatch) -> None:
    """Run every look once."""
    for each in watch.checks:
        each.run()


def set_topic(at: Place, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, progress_topic(at.settings().name), incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": at.stack.kafka.bootstrap})
    for future in client.incremental_alter_configs([resource]).values():
        future.result()


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change under a leader, the error that it causes, and a text that the error contains."""

    make: Callable[[Place], object]
    problem: type[PipelineProblem]
    named: str


def sql(*statements: str) -> Callable[[Place], object]:
    return lambda at: [at.sql(each) for each in statements]


BREAKING = {
    "retention": Change(
        make=lambda at: set_topic(at, "retention.ms", "60000"), problem=BrokerRefused, named="retention.ms=60000"
    ),
    "policy": Change(
        make=lambda at: set_topic(at, "cleanup.policy", "compact"),
        problem=BrokerRefused,
        named="cleanup.policy=compact",
    ),
    "rule": Change(
        make=sql("CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING"),
        problem=DatabaseRefused,
        named="rule keep",
    ),
    "index": Change(
        make=sql("DROP INDEX outbox_bucket_id_idx"), problem=DatabaseRefused, named="every poll would scan"
    ),
    "sequence": Change(
        make=sql("ALTER TABLE outbox ALTER COLUMN id SET CACHE 50"), problem=DatabaseRefused, named="CACHE 50"
    ),
    "foreign key": Change(
        make=sql("CREATE TABLE child (id bigint REFERENCES outbox)"),
        problem=DatabaseRefused,
        named="foreign key of public.child",
    ),
    "row security": Change(
        make=sql("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY"), problem=DatabaseRefused, named="row level security"
    ),
    "another table": Change(
        make=sql("ALTER TABLE outbox RENAME TO lost", "CREATE TABLE outbox (id bigint)"),
        problem=DatabaseRefused,
        named="column create_time",
    ),
    "no table": Change(make=sql("DROP TABLE outbox"), problem=DatabaseRefused, named="no such table"),
    "another database": Change(
        make=sql("UPDATE thresher_relay SET system_id = '1'"), problem=ForeignProgress, named="thresher adopt"
    ),
}


@pytest.mark.parametrize("change", BREAKING.values(), ids=BREAKING)
def test_a_change_that_breaks_a_guarantee_is_noticed(at: Place, watch: RelayWatch, change: Change) -> None:
    look(watch)
    assert watch.alarms == {}
    change.make(at)

    def noticed() -> bool:
        # A broker may show a change a moment later.
        look(watch)
        return False

    with pytest.raises(change.problem, match=change.named) as told:
        eventually(noticed, 60)
    assert told.value.exit_code == 4


def test_a_harmless_change_is_an_alarm_while_it_lasts(at: Place, watch: RelayWatch) -> None:
    at.sql("CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    at.sql("CREATE TRIGGER audit AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION noted()")
    look(watch)
    assert list(watch.alarms) == ["outbox, trigger audit"]
    at.sql("DROP TRIGGER audit ON outbox")
    look(watch)
    assert watch.alarms == {}


def test_a_difference_from_the_start_is_no_alarm(at: Place) -> None:
    at.sql("ALTER TABLE outbox ADD CONSTRAINT named CHECK (kafka_topic <> '')")
    with closing(RelayWatch(taken_over(at.settings(shards=1)))) as watch:
        look(watch)
        assert watch.alarms == {}


def test_every_assumption_is_checked_within_a_minute(watch: RelayWatch) -> None:
    # A broken guarantee is noticed within one interval and the look itself. Only old progress may wait longer.
    assert all(each.every_seconds <= 30 for each in watch.checks if each.at != "progress")


def test_a_relay_reports_changes_and_ends_on_breaking_ones(
    at: Place, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_ASSUMED_SECONDS", 0.2)
    with at.relaying(shards=1) as relaying:
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
        at.sql("ALTER TABLE outbox ADD CONSTRAINT named CHECK (kafka_topic <> '')")
        relaying.until(lambda: "outbox, constraint named" in relaying.relay.alarms)
        at.sql("CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING")
        error = relaying.ended()
    assert isinstance(error, DatabaseRefused)
    assert "rule keep" in str(error)
    assert error.exit_code == 4
