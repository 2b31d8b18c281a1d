"""Why topics are held: the cluster's answers, the results of tries, and the end of the grace."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.effects import Confine, Survey
from thresher.delivery.fate import Kind
from thresher.delivery.waiting.held_topics import HeldTopics
from thresher.delivery.waiting.topic_states import MOST_GRACES, TopicStates
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus, Unavailable

THERE = Available(partitions=1)
MISSING = Unavailable(refusal=Refusal.TOPIC, why="t is not there")
UNLED = Unavailable(refusal=None, why="nobody leads t")
GRACE_SECONDS = 60.0


def test_the_clusters_answer_holds_and_lifts_a_topic() -> None:
    states = TopicStates(GRACE_SECONDS)
    assert states.surveyed({"t": THERE}, 0.0).topics == {}
    assert states.surveyed({"t": MISSING, "u": THERE}, 1.0).topics.keys() == {"t"}
    found = states.surveyed({"t": THERE}, 2.0)
    assert (found.topics, found.lifted) == ({}, ("t",))
    assert states.surveyed({"t": THERE}, 3.0).lifted == ()


def test_only_a_delivery_lifts_a_refusal() -> None:
    states = TopicStates(GRACE_SECONDS)
    states.refused("t", Kind.NOT_AUTHORISED, "not ours", 0.0)
    assert states.surveyed({"t": THERE}, 0.9).topics.keys() == {"t"}
    found = states.surveyed({"t": THERE}, 1.0)
    assert (found.topics, found.lifted) == ({}, ()), "the topic is tried, and the alarm stays"
    assert states.delivered({"t", "u"}) == ["t"]
    assert states.delivered({"t"}) == []


def test_a_silent_topic_is_retried_with_back_off() -> None:
    states = TopicStates(GRACE_SECONDS)
    now, pauses = 0.0, []
    for _ in range(6):
        states.refused("t", None, "no answer", now)
        began = now
        while states.surveyed({"t": THERE}, now).topics:
            now += 1.0
        pauses.append(now - began)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([THERE, MISSING, UNLED])), max_size=30))
def test_a_topic_expires_only_after_a_whole_missing_grace(looks: list[tuple[int, TopicStatus]]) -> None:
    states = TopicStates(GRACE_SECONDS)
    now, missing_since = 0.0, None
    for passed, status in looks:
        now += passed
        missing_since = (missing_since if missing_since is not None else now) if status is MISSING else None
        for state in states.surveyed({"t": status}, now).topics.values():
            if states.expired(state):
                assert missing_since is not None
                assert now - missing_since >= GRACE_SECONDS


def test_topics_beyond_the_bound_have_no_grace() -> None:
    states = TopicStates(GRACE_SECONDS)
    names = [f"t{number}" for number in range(MOST_GRACES + 1)]
    found = states.surveyed(dict.fromkeys(names, MISSING), 0.0).topics
    assert [topic for topic, state in found.items() if states.expired(state)] == names[-1:]
    assert [topic for topic in names if states.overdue(topic, 1.0)] == names[-1:]
    assert all(states.overdue(topic, GRACE_SECONDS) for topic in names)
    # One of the others is there now: the next missing topic has a grace again.
    states.surveyed(dict.fromkeys(names[:2], THERE), 2.0)
    assert not states.expired(states.surveyed({"late": MISSING}, 3.0).topics["late"])


def test_a_refusal_is_forgotten_once_no_row_comes_for_long() -> None:
    states = TopicStates(GRACE_SECONDS)
    states.refused("gone", Kind.NOT_AUTHORISED, "not ours", 0.0)
    for now in range(0, 600, 30):
        states.refused("silent", None, "no answer", float(now))
    assert states.forget_unseen(61.0, ()) == []
    assert states.forget_unseen(62.0, ()) == ["gone"]
    assert states.forget_unseen(690.0, ()) == [], "the pause before its next try is no absence"
    assert states.forget_unseen(691.0, ()) == ["silent"]
    assert not states


def test_held_topics_take_turns_at_being_asked_about() -> None:
    names = [f"t{number}" for number in range(300)]
    states = TopicStates(GRACE_SECONDS)
    held = HeldTopics(states)
    held.hold(names)
    asked: list[str] = []
    for now in (0.0, 10.0):
        steps = held.tend()
        effect = next(steps)
        with contextlib.suppress(StopIteration):
            while True:
                topics = effect.topics if isinstance(effect, Survey) else frozenset()
                asked += sorted(topics, key=names.index)
                effect = steps.send(Surveyed(now=now, topics=dict.fromkeys(topics, MISSING)))
    assert asked == [*names[:250], *names[:200], *names[250:]]


def test_reads_are_confined_to_each_topic_that_was_available_lately() -> None:
    states = TopicStates(GRACE_SECONDS)
    held = HeldTopics(states)
    held.hold(f"t{number}" for number in range(300))
    good = [f"good{number}" for number in range(10_001)]
    confined: list[frozenset[str] | None] = []
    # The first topic is used once more: it is the second that gives way to the last.
    for now, available in enumerate((good[:2], good[2:-1], good[:1], good[-1:], good[:1])):
        held.available(available)
        steps = held.tend()
        effect = next(steps)
        with contextlib.suppress(StopIteration):
            while True:
                topics = effect.topics if isinstance(effect, Survey) else frozenset()
                if isinstance(effect, Confine):
                    confined.append(effect.topics)
                effect = steps.send(Surveyed(now=10.0 * now, topics=dict.fromkeys(topics, MISSING)))
    assert confined == [frozenset(each) for each in (good[:2], good[:-1], {good[0], *good[2:]})]


def test_the_wait_of_an_earlier_attempt_counts_for_the_grace() -> None:
    states = TopicStates(GRACE_SECONDS)
    states.go_on({"t": 50.0, "u": 50.0, "gone": 50.0}, 1_000.0)
    assert states.waits(1_002.0) == {"t": 52.0, "u": 52.0, "gone": 52.0}
    assert not states.expired(states.surveyed({"t": MISSING, "u": THERE}, 1_005.0).topics["t"])
    assert states.waits(1_005.0) == {"t": 55.0, "gone": 55.0}, "a topic that is there waits no longer"
    assert states.expired(states.surveyed({"t": MISSING}, 1_010.0).topics["t"])
    assert not states.expired(states.surveyed({"u": MISSING}, 1_060.0).topics["u"])
    assert states.waits(1_061.0) == {"t": 111.0, "u": 1.0}, "a wait without rows is forgotten"
