"""The wait after a commit is as long as the broker needs, and not much longer."""

from thresher.kafka.transaction_pacing import Breath


def test_it_grows_with_every_time_that_it_was_too_short_and_shrinks_slowly() -> None:
    breath = Breath()
    first = breath.after(1)
    breath.learn(1, 0.003, 0.025)
    longer = breath.after(1)
    assert longer == 1.5 * first
    for _ in range(10):
        breath.learn(1, longer, 0.004)
    assert first < breath.after(1) < longer
    for _ in range(1000):
        breath.learn(1, longer, 0.004)
    assert 0 < breath.after(1) < first
    for _ in range(100):
        breath.learn(1, 0.003, 0.025)
    assert breath.after(1) == 0.008


def test_only_transactions_of_few_rows_that_begin_close_behind_another_tell_anything() -> None:
    breath = Breath()
    first = breath.after(1)
    breath.learn(500, 0.003, 0.025)
    breath.learn(1, 0.1, 0.025)
    assert breath.after(1) == first


def test_many_rows_are_waited_for_longer() -> None:
    assert Breath().after(500) > Breath().after(1)
