"""The wait after a commit adapts to the broker, and stays short."""

from thresher.kafka.transaction.pacing import TransactionPacing


def test_wait_grows_when_too_short_and_shrinks_slowly() -> None:
    pacing = TransactionPacing()
    first = pacing.after(1)
    pacing.learn(1, 0.003, 0.025)
    longer = pacing.after(1)
    assert longer == 1.5 * first
    for _ in range(10):
        pacing.learn(1, longer, 0.004)
    assert first < pacing.after(1) < longer
    for _ in range(1000):
        pacing.learn(1, longer, 0.004)
    assert 0 < pacing.after(1) < first
    for _ in range(100):
        pacing.learn(1, 0.003, 0.025)
    assert pacing.after(1) == 0.008


def test_only_small_batches_soon_after_a_commit_are_learned() -> None:
    pacing = TransactionPacing()
    first = pacing.after(1)
    pacing.learn(500, 0.003, 0.025)
    pacing.learn(1, 0.1, 0.025)
    assert pacing.after(1) == first


def test_many_rows_mean_a_longer_wait() -> None:
    assert TransactionPacing().after(500) > TransactionPacing().after(1)
