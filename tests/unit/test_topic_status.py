"""The status of topics: which requests are made, how often, and the meaning of the answers."""

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.set_clock import SetClock
from thresher.delivery.fate import DEAD_KINDS
from thresher.kafka.admin import Admin, TopicFacts, TopicLimits
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, TopicSurvey, Unavailable

MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


class Cluster:
    """Answers requests of an admin client and of a producer from a table, and records them."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicFacts | KafkaError] = {}
        self.created: dict[str, int] = {}
        self.asked: list[set[str]] = []
        self.produced: list[str] = []
        self.needed: dict[str, int] = {}
        self.compacted: set[str] = set()
        self.configured: list[set[str]] = []

    def facts(self, names: Collection[str]) -> dict[str, TopicFacts | KafkaError]:
        self.asked.append(set(names))
        return {name: self.topics.get(name, MISSING) for name in names}

    def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        self.configured.append(set(names))
        found = self.needed.keys() & set(names)
        return {name: TopicLimits(min_in_sync=self.needed[name], keyed=name in self.compacted) for name in found}

    def partitions(self, topic: str) -> int | KafkaError:
        self.produced.append(topic)
        found = self.topics.get(topic, MISSING)
        return found.partitions if isinstance(found, TopicFacts) else self.created.get(topic, found)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def survey(cluster: Cluster, clock: SetClock) -> TopicSurvey:
    return TopicSurvey(cluster, cluster.partitions, clock=clock)  # type: ignore[arg-type]


def there(partitions: int = 3, topic_id: str = "a", *, writable: bool = True) -> TopicFacts:
    return TopicFacts(topic_id=topic_id, partitions=partitions, writable=writable)


def test_a_topic_that_looks_internal_exists_too(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin("127.0.0.1:1")
    found = SimpleNamespace(topics=dict.fromkeys(["orders", "__orders"], SimpleNamespace(partitions={0: None})))
    monkeypatch.setattr(admin, "client", SimpleNamespace(list_topics=lambda **_: found))
    assert TopicSurvey(admin, cluster.partitions).existing() == frozenset({"orders", "__orders"})


def test_topic_answers_are_batched_and_cached(cluster: Cluster, survey: TopicSurvey) -> None:
    names = {f"t{n}" for n in range(100)}
    cluster.topics = dict.fromkeys(names, there())
    for _ in range(2):
        assert set(survey.survey(names).topics.values()) == {Available(partitions=3)}
    assert cluster.asked == [names]


def test_a_missing_topic_is_asked_for_again_soon(cluster: Cluster, survey: TopicSurvey, clock: SetClock) -> None:
    cluster.topics = {"there": there()}
    assert isinstance(survey.survey(["there", "gone"]).topics["gone"], Unavailable)
    clock.now = 102.0
    cluster.topics["gone"] = there(1)
    assert survey.survey(["there", "gone"]).topics["gone"] == Available(partitions=1)
    assert cluster.asked[1:] == [{"gone"}]
    clock.now = 131.0
    survey.survey(["there"])
    assert cluster.asked[2:] == [{"there"}]


def test_the_producer_is_asked_only_about_new_or_changed_topics(cluster: Cluster, survey: TopicSurvey) -> None:
    for facts, asks in ((there(), 1), (there(), 1), (there(4), 2), (there(4, "b"), 3)):
        cluster.topics["t"] = facts
        assert survey.ask(["t"]) == {"t": Available(partitions=facts.partitions)}
        assert len(cluster.produced) == asks
    survey.forget("t")
    survey.ask(["t"])
    assert len(cluster.produced) == 4
    survey.survey(["t"], fresh=True)
    assert len(cluster.produced) == 5


def test_an_auto_created_topic_is_available(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.created["new"] = 1
    assert survey.ask(["new"]) == {"new": Available(partitions=1)}


def test_a_topic_without_write_permission_counts_as_missing(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics = {"shown": there(writable=False), "hidden": KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)}
    found = survey.ask(["shown", "hidden"])
    refused = [status.refusal for status in found.values() if isinstance(status, Unavailable)]
    assert refused == [Refusal.TOPIC_DENIED] * 2


def test_a_missing_topic_has_its_reason(survey: TopicSurvey) -> None:
    status = survey.ask(["gone"])["gone"]
    assert isinstance(status, Unavailable)
    assert status.refusal is Refusal.TOPIC
    assert status.why.startswith("gone: ")


def test_a_topic_without_an_answer_waits(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics = {"t": KafkaError(KafkaError.LEADER_NOT_AVAILABLE), "u": there()}
    found = survey.ask(["t", "u"])
    assert isinstance(found["t"], Unavailable)
    assert found["t"].refusal not in DEAD_KINDS
    assert found["u"] == Available(partitions=3)


def test_a_topic_with_a_leaderless_partition_waits(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics = {"t": there(), "u": there()}
    assert survey.ask(["t"])["t"] == Available(partitions=3)
    cluster.topics["t"] = replace(there(), leaderless=(1,))
    found = survey.ask(["t", "u"])
    assert found == {
        "t": Unavailable(refusal=None, why="t: nobody leads its partition 1"),
        "u": Available(partitions=3),
    }
    cluster.topics["t"] = there()
    assert survey.ask(["t"])["t"] == Available(partitions=3)


def test_a_topic_with_too_few_in_sync_replicas_waits(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics = dict.fromkeys("tu", replace(there(2), in_sync=(3, 3)))
    cluster.needed = {"t": 3, "u": 2}
    assert set(survey.ask(["t", "u"]).values()) == {Available(partitions=2)}
    cluster.topics = dict.fromkeys("tu", replace(there(2), in_sync=(3, 2)))
    why = "t: its partition 1 has 2 in-sync replicas and needs 3"
    assert survey.ask(["t", "u"]) == {"t": Unavailable(refusal=None, why=why), "u": Available(partitions=2)}
    assert cluster.configured == [{"t", "u"}, {"t"}], "asked again where it matters"
    # The topic's setting was lowered.
    cluster.needed["t"] = 2
    assert survey.ask(["t"])["t"] == Available(partitions=2)


def test_a_topic_with_unreadable_configuration_has_enough_replicas(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics = {"t": replace(there(1), in_sync=(1,))}
    assert survey.ask(["t"])["t"] == Available(partitions=1)


def test_a_survey_without_an_answer_raises(
    survey: TopicSurvey, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: Collection[str]) -> dict[str, TopicFacts | KafkaError]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(cluster, "facts", silent)
    with pytest.raises(BrokerLost, match="did not return the status of t"):
        survey.survey(["t"])


def test_topics_in_use_are_refreshed_together(cluster: Cluster, survey: TopicSurvey, clock: SetClock) -> None:
    names = [f"t{n}" for n in range(100)]
    cluster.topics = dict.fromkeys([*names, "rare"], there())
    survey.survey(["rare"])
    survey.survey(names)
    began = len(cluster.asked)
    for n in range(2_000):
        clock.now += 0.01
        survey.survey([names[n % 100]])
    # 20 s: each answer is valid for at least 2.5 s, and the rare topic was not used.
    assert len(cluster.asked) - began < 12
    assert not any("rare" in asked for asked in cluster.asked[began + 1 :])


def test_a_missing_answer_keeps_the_known_min_insync_replicas(
    cluster: Cluster, survey: TopicSurvey, clock: SetClock
) -> None:
    cluster.topics = {"narrow": replace(there(), in_sync=(2, 2, 2))}
    cluster.needed = {"narrow": 3}
    assert isinstance(survey.survey(["narrow"]).topics["narrow"], Unavailable)
    cluster.needed = {}
    clock.now += 100.0
    assert isinstance(survey.survey(["narrow"]).topics["narrow"], Unavailable)


def test_a_topic_demands_keys_only_by_a_new_answer(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics, cluster.needed, cluster.compacted = {"t": there()}, {"t": 1}, {"t"}
    assert survey.survey(["t"], fresh=True).topics == {"t": Available(partitions=3, keyed=True)}
    cluster.needed = {}
    assert survey.survey(["t"], fresh=True).topics == {"t": Available(partitions=3)}


def test_thousands_of_missing_topics_are_asked_about_a_few_at_a_time(
    cluster: Cluster, clock: SetClock, survey: TopicSurvey
) -> None:
    cluster.topics["t"] = there()
    survey.survey(["t"])
    names = ["t", *(f"missing {number}" for number in range(5_000))]
    for _ in range(4):
        clock.now += 6.0
        found = survey.survey(names).topics
        assert isinstance(found["t"], Available), "topics that are known come first"
        assert 200 < len(found) < 300
    assert max(map(len, cluster.asked)) < 300
    assert len(cluster.produced) < 20


def test_thousands_of_topics_that_exist_are_asked_about_at_once(cluster: Cluster, survey: TopicSurvey) -> None:
    cluster.topics.update({f"t{number}": there(topic_id=str(number)) for number in range(2_000)})
    assert len(survey.survey(list(cluster.topics)).topics) == 2_000


def test_a_topic_is_created_although_many_others_are_missing(
    cluster: Cluster, clock: SetClock, survey: TopicSurvey
) -> None:
    survey.survey([f"missing {number}" for number in range(100)])
    cluster.created["new"] = 3
    for _ in range(30):
        clock.now += 2.0
        if isinstance(survey.survey(["new", *(f"missing {number}" for number in range(2))]).topics["new"], Available):
            return
    raise AssertionError("the producer was never asked for it")
