"""The schedule of the random soak is the seed's, and leaves no kind of fault out."""

from tests.relay.mixing import KINDS, schedule

DECK = sum(times for times, _ in KINDS.values())


def test_a_seed_gives_one_schedule_and_another_seed_another() -> None:
    assert list(schedule(7, 600)) == list(schedule(7, 600))
    assert list(schedule(7, 600)) != list(schedule(8, 600))


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    short = list(schedule(7, 100))
    assert list(schedule(7, 600))[: len(short)] == short


def test_every_kind_comes_before_any_comes_more_often_than_it_is_dealt() -> None:
    for seed in range(5):
        kinds = [fault.kind for fault in schedule(seed, 3600)][:DECK]
        assert {kind: kinds.count(kind) for kind in KINDS} == {kind: times for kind, (times, _) in KINDS.items()}


def test_faults_come_in_order_and_within_the_time() -> None:
    times = [fault.at for fault in schedule(3, 300)]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] < 300
