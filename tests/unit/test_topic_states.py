"""Why topics are held: the cluster's answers, the results of tries, and the end of the grace."""

from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.fate import Kind
from thresher.delivery.waiting.topic_states import MOST_GRACES, TopicStates
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, TopicStatus, Unavailable

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
    states.hold(names)
    assert states.overdue(1.0, 250) == {names[-1]}
    assert len(states.overdue(GRACE_SECONDS, 250)) == 250
    # One of the others is there now: the next missing topic has a grace again.
    states.surveyed(dict.fromkeys(names[:2], THERE), 2.0)
    assert not states.expired(states.surveyed({"late": MISSING}, 3.0).topics["late"])


def test_held_topics_take_turns_at_being_asked_about() -> None:
    states = TopicStates(GRACE_SECONDS)
    states.hold("abcd")
    assert [states.next_held(3), states.next_held(3)] == [["a", "b", "c"], ["d", "a", "b"]]
