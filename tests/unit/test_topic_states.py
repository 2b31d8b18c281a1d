"""Why topics are held: the cluster's answers, the results of tries, and the end of the grace."""

import contextlib
from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.effects import Confine, Effect, ListTopics, Survey, Sweep
from thresher.delivery.fate import Kind
from thresher.delivery.waiting.held_topics import HeldTopics
from thresher.delivery.waiting.topic_states import MOST_KEPT, TopicStates
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus, Unavailable

THERE = Available(partitions=1)
MISSING = Unavailable(refusal=Refusal.TOPIC, why="t is not there")
UNLED = Unavailable(refusal=None, why="nobody leads t")
GRACE_SECONDS, MOST_GRACES = 60.0, 100


def test_the_clusters_answer_holds_and_lifts_a_topic() -> None:
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
    assert states.surveyed({"t": THERE}, 0.0).topics == {}
    assert states.surveyed({"t": MISSING, "u": THERE}, 1.0).topics.keys() == {"t"}
    found = states.surveyed({"t": THERE}, 2.0)
    assert (found.topics, found.lifted) == ({}, ("t",))
    assert states.surveyed({"t": THERE}, 3.0).lifted == ()


def test_only_a_delivery_lifts_a_refusal() -> None:
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
    states.refused("t", Kind.NOT_AUTHORISED, "not ours", 0.0)
    assert states.surveyed({"t": THERE}, 0.9).topics.keys() == {"t"}
    found = states.surveyed({"t": THERE}, 1.0)
    assert (found.topics, found.lifted) == ({}, ()), "the topic is tried, and the alarm stays"
    assert states.delivered({"t", "u"}) == ["t"]
    assert states.delivered({"t"}) == []


def test_a_silent_topic_is_retried_with_back_off() -> None:
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
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
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
    now, missing_since = 0.0, None
    for passed, status in looks:
        now += passed
        missing_since = (missing_since if missing_since is not None else now) if status is MISSING else None
        for state in states.surveyed({"t": status}, now).topics.values():
            if states.expired(state):
                assert missing_since is not None
                assert now - missing_since >= GRACE_SECONDS


def test_topics_beyond_the_bound_have_no_grace() -> None:
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
    names = [f"t{number}" for number in range(MOST_GRACES + 1)]
    found = states.surveyed(dict.fromkeys(names, MISSING), 0.0).topics
    assert [topic for topic, state in found.items() if states.expired(state)] == names[-1:]
    assert [topic for topic in names if states.overdue(topic, 1.0)] == names[-1:]
    assert all(states.overdue(topic, GRACE_SECONDS) for topic in names)
    assert states.waits(1.0).keys() == set(names[:-1])
    # One of the others is there now: the next missing topic has a grace again.
    states.surveyed(dict.fromkeys(names[:2], THERE), 2.0)
    assert not states.expired(states.surveyed({"late": MISSING}, 3.0).topics["late"])


def test_a_refusal_is_forgotten_once_no_row_comes_for_long() -> None:
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
    states.refused("gone", Kind.NOT_AUTHORISED, "not ours", 0.0)
    for now in range(0, 600, 30):
        states.refused("silent", None, "no answer", float(now))
    assert states.forget_unseen(61.0, ()) == []
    assert states.forget_unseen(62.0, ()) == ["gone"]
    assert states.forget_unseen(690.0, ()) == [], "the pause before its next try is no absence"
    assert states.forget_unseen(691.0, ()) == ["silent"]
    assert not states


def tended(held: HeldTopics, now: float, existing: frozenset[str] | None = frozenset()) -> list[Effect]:
    """Return the effects of a look at the held topics, all of which are missing, in a cluster with these topics."""
    seen: list[Effect] = []
    steps = held.tend()
    with contextlib.suppress(StopIteration):
        effect = next(steps)
        while True:
            seen.append(effect)
            answer: Any = None
            match effect:
                case Survey():
                    answer = Surveyed(now=now, topics=dict.fromkeys(effect.topics, MISSING))
                case Sweep():
                    answer = frozenset()
                case ListTopics():
                    answer = existing
            effect = steps.send(answer)
    return seen


def test_held_topics_take_turns_at_being_asked_about() -> None:
    names = [f"t{number}" for number in range(300)]
    held = HeldTopics(TopicStates(GRACE_SECONDS, 1_000))
    held.hold(names)
    looks = [each for now in (0.0, 10.0) for each in tended(held, now)]
    asked = [sorted(each.topics, key=names.index) for each in looks if isinstance(each, Survey) and each.topics]
    assert list(chain(*asked)) == [*names[:250], *names[:200], *names[250:]]


def test_reads_are_confined_to_each_topic_that_was_available_lately() -> None:
    held = HeldTopics(TopicStates(GRACE_SECONDS, 1_000))
    held.hold(f"t{number}" for number in range(300))
    good = [f"good{number}" for number in range(10_001)]
    confined: list[frozenset[str] | None] = []
    # The first topic is used once more: it is the second that gives way to the last.
    for now, available in enumerate((good[:2], good[2:-1], good[:1], good[-1:], good[:1])):
        held.available(available)
        confined += [each.topics for each in tended(held, 10.0 * now) if isinstance(each, Confine)]
    assert confined == [frozenset(each) for each in (good[:2], good[:-1], {good[0], *good[2:]})]


def test_confined_reads_know_each_topic_of_the_cluster_soon() -> None:
    held = HeldTopics(TopicStates(GRACE_SECONDS, 1_000))
    held.hold(f"t{number}" for number in range(300))
    confined: list[Effect] = []
    # No topic was available yet; one is new at last; the cluster does not answer.
    for now, existing in ((0.0, {"a"}), (1.0, {"a"}), (2.0, {"a"}), (3.0, {"a", "b"}), (4.0, {"a", "b"}), (6.0, None)):
        looks = tended(held, now, frozenset(existing) if existing is not None else None)
        confined += [each for each in looks if isinstance(each, Confine)]
        assert (ListTopics() in looks) == (now in {0.0, 2.0, 4.0, 6.0})
    assert confined == [Confine(frozenset(), frozenset("a")), Confine(frozenset(), frozenset("ab"))]


def test_the_wait_of_an_earlier_attempt_counts_for_the_grace() -> None:
    states = TopicStates(GRACE_SECONDS, MOST_GRACES)
    states.go_on({"t": 50.0, "u": 50.0, "gone": 50.0}, 1_000.0)
    assert states.waits(1_002.0) == {"t": 52.0, "u": 52.0, "gone": 52.0}
    assert not states.expired(states.surveyed({"t": MISSING, "u": THERE}, 1_005.0).topics["t"])
    assert states.waits(1_005.0) == {"t": 55.0, "gone": 55.0}, "a topic that is there waits no longer"
    assert states.expired(states.surveyed({"t": MISSING}, 1_010.0).topics["t"])
    assert not states.expired(states.surveyed({"u": MISSING}, 1_060.0).topics["u"])
    assert states.waits(1_061.0) == {"t": 111.0, "u": 1.0}, "a wait without rows is forgotten"


def test_the_longest_waits_of_a_bounded_number_of_topics_are_kept() -> None:
    states = TopicStates(GRACE_SECONDS, 2 * MOST_KEPT)
    for now in (0.0, 1.0):
        states.surveyed(dict.fromkeys((f"{now}-{number}" for number in range(MOST_KEPT - 10)), MISSING), now)
    kept = states.waits(2.0)
    assert (len(kept), sum(waited == 2.0 for waited in kept.values())) == (MOST_KEPT, MOST_KEPT - 10)
