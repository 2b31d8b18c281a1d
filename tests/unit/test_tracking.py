"""A tracker's decisions by markers: deadlines, grace, marks, limits, and Starts that are written again."""

import random
from typing import Any

import pytest

from tests.tracker.simulated_log import SimulatedLog
from thresher.queue.limits import Limit
from thresher.queue.wire.marker import Marker, MarkerType, MessageId, encode
from thresher.tracker.protocol.contents import Contents, Packed, packed, size_of
from thresher.tracker.protocol.state import Messages
from thresher.tracker.protocol.tracking import MOST_MESSAGES, Rules, Tracking
from thresher.tracker.protocol.transaction import Dead, RecordRefused, Redelivered, RefusedKind, Transaction


def log(**rules: object) -> SimulatedLog:
    return SimulatedLog(rules=Rules(**rules))  # type: ignore[arg-type]


def fates(found: SimulatedLog) -> list[tuple[int, str]]:
    """Return the fate of each message, in order."""
    return [
        (
            each.id.offset,
            each.fate.kind if isinstance(each.fate, Dead) else f"delivery {each.fate.marker.delivery_count}",
        )
        for each in found.decided
    ]


def next_transaction(found: SimulatedLog) -> Transaction | None:
    """Let the tracker read all markers, move the clock by 50 ms, and return the tracker's next transaction."""
    found.read()
    found.ask()
    found.now_ms += 50
    return found.tracking.next(found.now_ms / 1000)


def test_nothing_is_decided_before_its_own_mark_is_read() -> None:
    found = log()
    found.start(1, 100)
    found.now_ms += 10_000
    found.read()
    found.ask()
    assert found.step(), "the first mark"
    assert not found.tracking.decides
    found.now_ms += 10_000
    found.ask(stale=True)
    assert not found.step()
    found.run(2_000)
    assert fates(found) == [(1, "delivery 2")]


def test_an_end_behind_a_stale_watermark_prevents_redelivery() -> None:
    found = log()
    found.run(200)
    found.start(1, 5_000)
    found.settle()
    found.end_of(1)
    # A broker that was cut off shows no End while time passes.
    for _ in range(20):
        found.now_ms += 500
        found.ask(stale=True)
    assert found.tracking.clock.now_ms >= found.now_ms - 500
    assert found.step(), "the mark that is written after the deadline"
    found.run(5_000)
    assert fates(found) == []


def test_a_message_is_redelivered_with_one_more_delivery_and_ended() -> None:
    found = log()
    found.start(1, 1_000, headers=(("h", b"v"),), enqueued_at_ms=7)
    found.run(900)
    assert fates(found) == []
    found.run(3_000)
    (decided,) = found.decided
    assert isinstance(decided.fate, Redelivered)
    marker = decided.fate.marker
    assert (marker.delivery_count, marker.origin_id, marker.headers) == (2, MessageId(0, 1), (("h", b"v"),))
    assert (marker.enqueued_at_ms, marker.key, marker.value) == (7, b"q", b"1")
    assert not len(found.tracking.messages)
    assert found.committed == found.end


def test_consumers_get_half_their_timeout_after_a_restart() -> None:
    found = log()
    found.start(1, 10_000)
    found.start(2, 90_000)
    found.now_ms += 100_000
    found.run(4_900)
    assert fates(found) == [], "no KeepAlive could have been written and read"
    found.keep_alive(1, 10_000)
    found.run(5_000)
    assert fates(found) == []
    found.run(21_000)
    assert fates(found) == [(1, "delivery 2"), (2, "delivery 2")], "at most 30 s for the second"


@pytest.mark.parametrize("marker", [{"released": True}, {"reject_reason": "no"}])
def test_a_nack_and_a_reject_have_no_grace(marker: dict[str, object]) -> None:
    found = log()
    found.start(1, 60_000)
    found.keep_alive(1, 0, **marker)
    found.now_ms += 100_000
    found.run(1_500)
    assert len(found.decided) == 1


def test_a_broker_outage_redelivers_no_message() -> None:
    found = log()
    found.run(500)
    found.start(1, 4_000)
    found.run(1_000)
    # The broker is away. Afterwards another queue's marker brings the broker's time.
    found.now_ms += 20_000
    found.start(2, 60_000)
    found.run(1_800)
    assert fates(found) == []
    found.run(1_500)
    assert fates(found) == [(1, "delivery 2")]


def test_a_second_start_of_the_same_message_replaces_the_first() -> None:
    found = log()
    found.start(1, 1_000)
    found.run(500)
    found.start(1, 5_000)
    found.run(3_000)
    assert fates(found) == []
    found.run(6_000)
    assert fates(found) == [(1, "delivery 2")]


def test_messages_with_one_id_are_redelivered_separately() -> None:
    found = log()
    found.run(500)
    found.start(1, 60_000, origin_id=MessageId(0, 900), enqueued_at_ms=1, delivery_count=3)
    found.run(500)
    found.start(1, 5_000, origin_id=MessageId(0, 1), enqueued_at_ms=1)
    found.run(1_000)
    assert fates(found) == [(1, "delivery 4")]
    assert found.decided[0].fate.marker.origin_id == MessageId(0, 900)
    assert len(found.tracking.messages) == 1
    found.crash(committing=False)
    found.run(20_000)
    assert fates(found) == [(1, "delivery 4"), (1, "delivery 2")]


def test_a_message_returned_undelivered_keeps_its_count() -> None:
    found = log()
    found.start(1, 60_000, delivery_count=3)
    found.keep_alive(1, 0, released=True, undelivered=True)
    found.run(2_000)
    assert fates(found) == [(1, "delivery 3")]


def test_a_delayed_message_is_first_delivered_when_due() -> None:
    found = log(limit_of=lambda _: Limit(max_deliveries=1, ttl_ms=100))
    found.append(
        Marker(type=MarkerType.START, message_id=MessageId(-1, 5), redeliver_after_ms=3_000, key=b"q", undelivered=True)
    )
    found.run(2_900)
    assert fates(found) == []
    assert found.tracking.messages.delayed == 1
    found.run(500)
    assert fates(found) == [(5, "delivery 1")]
    assert found.decided[0].fate.marker.first_started_ms is None
    assert found.tracking.messages.delayed == 0


def test_a_message_past_its_delivery_limit_is_dead() -> None:
    found = log(limit_of=lambda _: Limit(max_deliveries=3))
    found.start(1, 100, delivery_count=2)
    found.start(2, 100, delivery_count=3)
    found.start(3, 100, delivery_count=3, max_deliveries=4)
    found.start(4, 100, delivery_count=3)
    found.keep_alive(4, 0, released=True, undelivered=True)
    found.run(3_000)
    assert sorted(fates(found)) == [(1, "delivery 3"), (2, "max_deliveries"), (3, "delivery 4"), (4, "delivery 3")]


def test_a_ttl_counts_from_the_first_start() -> None:
    found = log(limit_of=lambda _: Limit(ttl_ms=5_000))
    found.run(100)
    now = found.now_ms
    found.start(1, 100, first_started_ms=now - 5_000)
    found.start(2, 100, first_started_ms=now - 3_000)
    found.start(3, 100, first_started_ms=now - 5_000, ttl_ms=100_000)
    found.start(4, 6_000)
    found.run(1_000)
    assert sorted(fates(found)) == [(1, "ttl"), (2, "delivery 2"), (3, "delivery 2")]
    found.run(10_000)
    assert fates(found)[-1] == (4, "ttl")


def test_redelivered_messages_carry_their_first_start_time() -> None:
    found = log()
    found.run(100)
    found.start(1, 100)
    began = found.now_ms
    found.run(3_000)
    assert abs((found.decided[0].fate.marker.first_started_ms or 0) - began) <= 100


def test_a_keep_alive_after_a_reject_brings_nothing_back() -> None:
    found = log()
    found.start(1, 60_000)
    found.keep_alive(1, 0, reject_reason="no")
    found.keep_alive(1, 60_000)
    found.run(2_000)
    assert fates(found) == [(1, "rejected")]


def test_malformed_markers_are_counted_and_skipped() -> None:
    found = log()
    found.records.append((found.now_ms, b"no marker"))
    found.append(Marker(type=MarkerType.START, message_id=MessageId(-2, 1), redeliver_after_ms=1))
    found.append(Marker(type=MarkerType.START, message_id=MessageId(0, -1), redeliver_after_ms=1))
    # A later version.
    found.records.append((found.now_ms, b"\x08\x01" + encode(Marker(type=MarkerType.END, message_id=MessageId(0, 1)))))
    found.end_of(7)
    found.keep_alive(7, 5)
    found.start(1, 100)
    found.run(3_000)
    counts = found.tracking.figures.counts
    assert (counts["malformed"], counts["unknown_ends"], counts["unknown_keep_alives"]) == (4, 1, 1)
    assert [offset for offset, _ in found.tracking.figures.malformed] == [0, 1, 2, 3]
    assert found.tracking.figures.malformed[1][1] == "no message has the id -2-1"
    assert fates(found) == [(1, "delivery 2")]


def test_the_trackers_own_ends_are_not_malformed() -> None:
    found = log()
    found.start(1, 100)
    found.run(3_000)
    assert found.tracking.figures.counts["unknown_ends"] == 0


def test_an_old_start_is_written_again() -> None:
    found = log(rewrite_after_ms=5_000)
    found.start(1, 3_600_000)
    found.run(20_000)
    assert found.committed > 0
    found.trim()
    found.crash(committing=False)
    found.run(30_000)
    assert len(found.tracking.messages) == 1
    found.end_of(1)
    found.run(5_000)
    assert not len(found.tracking.messages)
    assert found.committed == found.end
    assert found.decided == []


def test_a_start_a_million_markers_behind_is_written_again() -> None:
    found = log(most_behind=50)
    found.start(1, 3_600_000)
    for number in range(2, 60):
        found.start(number, 3_600_000)
        found.end_of(number)
    found.run(3_000)
    assert found.tracking.figures.counts["rewritten"] == 1
    assert found.committed > 50


def test_many_messages_go_in_bounded_transactions() -> None:
    found = log()
    for number in range(2 * MOST_MESSAGES + 1):
        found.start(number, 100)
    found.run(3_000)
    sizes = [len(each.fates) for each in found.transactions if each.fates]
    assert sizes == [MOST_MESSAGES, MOST_MESSAGES, 1]


def test_a_refused_letter_is_written_in_smaller_parts() -> None:
    found = log()
    found.start(1, 60_000)
    found.start(2, 60_000)
    for number in (1, 2):
        found.keep_alive(number, 0, reject_reason="no" * 1_500)
    tried = []
    for _ in range(200):
        transaction = next_transaction(found)
        if transaction is None:
            continue
        one = [each for each in transaction.fates if isinstance(each, Dead) and each.marker.message_id.offset == 1]
        if one and one[0].part_bytes != 0:
            tried += [each.part_bytes for each in one] if len(transaction.fates) == 1 else []
            found.tracking.refused(transaction, "too large", RefusedKind.LETTER)
            continue
        found.commit(transaction)
        found.tracking.committed(transaction, found.now_ms / 1000)
    assert tried == [None, 500_000, 100_000, 10_000]
    assert sorted(fates(found)) == [(1, "rejected"), (2, "rejected")]
    assert {len(each.fate.reason) for each in found.decided if isinstance(each.fate, Dead)} == {1_000}


def test_only_a_letter_refused_without_its_content_ends_the_tracker() -> None:
    found = log()
    found.start(1, 60_000)
    found.keep_alive(1, 0, reject_reason="no")

    def refuse_every_letter() -> None:
        for _ in range(200):
            transaction = next_transaction(found)
            if transaction is not None and transaction.fates:
                found.tracking.refused(transaction, "too large", RefusedKind.LETTER)
            elif transaction is not None:
                found.commit(transaction)
                found.tracking.committed(transaction, found.now_ms / 1000)

    with pytest.raises(RecordRefused, match="even without its content"):
        refuse_every_letter()


def test_a_start_that_cannot_be_copied_becomes_a_dead_letter() -> None:
    found = log(rewrite_after_ms=1_000)
    for number in range(5):
        found.start(number, 600_000)
    for _ in range(200):
        transaction = next_transaction(found)
        if transaction is None:
            continue
        if any(each.message_id.offset == 3 for each in transaction.copies):
            found.tracking.refused(transaction, "too large", RefusedKind.COPY)
            continue
        found.commit(transaction)
        found.tracking.committed(transaction, found.now_ms / 1000)
    assert fates(found) == [(3, "refused")]
    assert len(found.tracking.messages) == 4


@pytest.mark.parametrize(
    "marker",
    [
        {"key": b"q" * 1_001},
        {"origin_id": MessageId(-2, 1)},
        {"origin_id": MessageId(1, -1)},
        {"type": MarkerType.KEEPALIVE, "reject_reason": "x" * 6_000},
    ],
)
def test_markers_that_no_program_of_ours_writes_are_skipped(marker: dict[str, Any]) -> None:
    found = Tracking(0, 0, Rules())
    given: dict[str, Any] = {"type": MarkerType.START, "message_id": MessageId(0, 1), "key": b"q", **marker}
    found.take(0, 1_000, b"q", encode(Marker(**given)), 0.0)
    assert found.figures.counts["malformed"] == 1
    assert len(found.messages) == 0


def test_a_large_start_is_kept_small_and_returned_whole() -> None:
    whole = encode(
        Marker(type=MarkerType.START, message_id=MessageId(0, 1), key=b"q", value=bytes(1_000_000))
    )  # fmt: skip
    found = Tracking(0, 0, Rules())
    found.take(0, 1_000, b"q", whole, 0.0)
    (message,) = found.messages.oldest(1, lambda _: True)
    assert isinstance(message.content, Packed)
    assert len(message.content.compressed) < 10_000
    assert (found.messages.content_of(message), size_of(message.content)) == (whole, len(whole))
    assert packed(b"small") == b"small"
    noise = random.Random(1).randbytes(100_000)
    assert packed(noise) is noise


def test_small_starts_are_kept_compressed_once_there_is_little_room() -> None:
    """60,000 bytes of zeros are a few bytes on the wire, and less than what is always compressed."""
    found = Tracking(0, 0, Rules(), contents=Contents(roomy_bytes=1_000_000))
    wholes = [
        encode(Marker(type=MarkerType.START, message_id=MessageId(0, number), key=b"q", value=bytes(60_000)))
        for number in range(1_000)
    ]
    for number, whole in enumerate(wholes):
        found.take(number, 1_000, b"q", whole, 0.0)
    messages = found.messages.oldest(1_000, lambda _: True)
    assert [found.messages.content_of(each) for each in messages] == wholes
    assert found.messages.contents.kept_bytes < 1_200_000
    for each in messages:
        found.messages.remove(each)
        found.messages.remove(each)
    assert found.messages.contents.kept_bytes == 0


def test_a_refused_message_is_found_and_becomes_dead() -> None:
    found = log()
    for number in range(8):
        found.start(number, 100)
    found.now_ms += 1_000
    refused = 0
    for _ in range(200):
        found.now_ms += 100
        found.read()
        found.ask()
        transaction = found.tracking.next(found.now_ms / 1000)
        if transaction is None:
            continue
        if any(isinstance(each, Redelivered) and each.marker.message_id.offset == 5 for each in transaction.fates):
            refused += 1
            found.tracking.refused(transaction, "too large")
            continue
        found.commit(transaction)
        found.tracking.committed(transaction, found.now_ms / 1000)
    assert refused <= 6, "each time half as many"
    assert sorted(fates(found)) == [
        (number, "refused" if number == 5 else "delivery 2") for number in range(8)
    ]  # fmt: skip
    (dead,) = [each.fate for each in found.decided if isinstance(each.fate, Dead)]
    assert "too large" in dead.reason


def test_a_transaction_without_effect_is_retried() -> None:
    found = log()
    found.start(1, 100)
    undone = 0
    for _ in range(50):
        found.now_ms += 100
        found.read()
        found.ask()
        transaction = found.tracking.next(found.now_ms / 1000)
        if transaction is not None and transaction.fates and undone < 3:
            undone += 1
            found.tracking.undone(transaction)
        elif transaction is not None:
            found.commit(transaction)
            found.tracking.committed(transaction, found.now_ms / 1000)
    assert fates(found) == [(1, "delivery 2")]


def test_offsets_are_committed_by_number_and_by_time() -> None:
    found = log(markers_per_commit=10)
    found.run(3_000)
    before = len(found.transactions)
    for number in range(100):
        found.start(number, 60_000)
        found.end_of(number)
        found.now_ms += 10
        found.settle()
    assert 4 <= len(found.transactions) - before <= 6, "one second, five times"
    found.run(3_000)
    assert found.committed == found.end
    at_rest = len(found.transactions)
    found.run(10_000)
    assert len(found.transactions) == at_rest, "nothing new, nothing to commit"


def test_a_busy_partition_is_decided_before_its_end() -> None:
    found = log()
    found.run(500)
    found.start(1, 1_000)
    for number in range(100, 8_100):
        # Markers arrive during each request: the reader is always a few markers behind the end.
        found.start(number, 60_000)
        found.end_of(number)
        found.now_ms += 1
        found.read(most=2)
        if number % 500 == 0:
            found.tracking.answered(found.now_ms / 1000, found.end + 5)
        found.step()
    assert (1, "delivery 2") in fates(found)


def test_another_queues_marker_after_silence_redelivers_nothing() -> None:
    found = log()
    found.run(500)
    found.start(1, 20_000)
    found.run(1_000)
    found.now_ms += 90_000
    # The broker answers before any consumer could write.
    found.ask()
    found.start(2, 60_000)
    found.run(9_000)
    assert fates(found) == []
    found.keep_alive(1, 20_000)
    found.run(15_000)
    assert fates(found) == []


def test_delayed_nacks_and_messages_have_no_restart_grace() -> None:
    found = log()
    found.start(1, 60_000)
    found.keep_alive(1, 20_000, released=True)
    delayed = Marker(
        type=MarkerType.START, message_id=MessageId(-1, 5), redeliver_after_ms=20_000, key=b"q", undelivered=True
    )
    found.append(delayed)
    found.now_ms += 100_000
    found.run(1_500)
    assert sorted(fates(found)) == [(1, "delivery 2"), (5, "delivery 1")]


def test_a_recreated_message_topic_loses_no_message() -> None:
    found = log()
    found.run(500)
    found.start(1, 60_000, origin_id=MessageId(0, 1), enqueued_at_ms=1)
    found.start(1, 60_000, origin_id=MessageId(0, 1), enqueued_at_ms=2)
    found.run(1_500)
    (decided,) = found.decided
    assert decided.fate.marker.enqueued_at_ms == 1
    assert len(found.tracking.messages) == 1
    found.crash(committing=False)
    found.run(100_000, 500)
    assert [each.fate.marker.enqueued_at_ms for each in found.decided] == [1, 2]


def test_own_ends_are_forgotten_once_read() -> None:
    found = log()
    for number in range(50):
        found.append(
            Marker(
                type=MarkerType.START,
                message_id=MessageId(-1, number),
                redeliver_after_ms=1,
                key=b"q",
                undelivered=True,
            )
        )
        found.start(number, 100)
    found.run(3_000)
    assert len(found.decided) == 100
    assert not found.tracking._own_ends


def test_a_copy_keeps_the_timeout_and_the_first_start() -> None:
    found = log(rewrite_after_ms=2_000, limit_of=lambda _: Limit(ttl_ms=30_000))
    found.start(1, 25_000)
    began = found.now_ms
    found.run(6_000)
    copies = [copy for each in found.transactions for copy in each.copies]
    assert copies
    assert {copy.timeout_ms for copy in copies} == {25_000}
    assert {copy.first_started_ms for copy in copies} == {began}
    assert all(18_000 <= copy.redeliver_after_ms <= 23_100 for copy in copies)
    found.trim()
    found.crash(committing=False)
    # The copy has the remaining time to its deadline, and the grace of its whole timeout.
    found.now_ms += 30_000
    found.run(12_000)
    assert fates(found) == []
    found.run(2_000)
    assert fates(found) == [(1, "ttl")]


def test_a_copy_of_another_message_changes_nothing() -> None:
    found = log()
    found.run(500)
    found.start(1, 60_000, enqueued_at_ms=1)
    found.run(200)
    offset = found.tracking.messages.first_offset()
    found.start(1, 5, enqueued_at_ms=2, read_to=found.end - 1, origin_id=MessageId(0, 9))
    found.run(2_000)
    assert found.tracking.messages.first_offset() == offset
    assert fates(found) == []


def test_an_end_of_another_message_ends_no_copy() -> None:
    found = log(rewrite_after_ms=10**9)
    found.start(9, 3_600_000)
    read_to = found.end
    own_end = Marker(type=MarkerType.END, message_id=MessageId(0, 5), origin_id=MessageId(0, 1), enqueued_at_ms=1)
    found.append(own_end)
    found.keep_alive(5, 60_000)
    found.start(5, 60_000, origin_id=MessageId(0, 5), enqueued_at_ms=2, read_to=read_to, timeout_ms=60_000)
    found.run(1_000)
    assert found.tracking.messages.get((0, 5)) is not None


def test_an_end_after_a_second_start_ends_copies_too() -> None:
    found = log(rewrite_after_ms=1_000)
    found.run(500)
    found.start(1, 60_000)
    found.read()
    found.now_ms += 1_500
    found.ask()

    def meanwhile() -> None:
        found.start(1, 60_000)
        found.end_of(1)

    while not found.transactions[-1].copies:
        assert found.step(meanwhile)
    found.run(1_000)
    assert len(found.tracking.messages) == 0
    found.run(120_000, 1_000)
    assert fates(found) == []


@pytest.mark.parametrize(
    "late",
    [
        {"type": MarkerType.END},
        {"type": MarkerType.KEEPALIVE, "redeliver_after_ms": 0, "released": True},
        {"type": MarkerType.KEEPALIVE, "reject_reason": "no"},
    ],
    ids=["ack", "nack", "reject"],
)
def test_old_markers_do_not_affect_a_new_message(late: dict[str, object]) -> None:
    found = log()
    found.run(500)
    found.start(1, 60_000, origin_id=MessageId(0, 1), enqueued_at_ms=1)
    found.start(1, 60_000, origin_id=MessageId(0, 1), enqueued_at_ms=2)
    found.run(1_500)
    found.append(
        Marker(message_id=MessageId(0, 1), origin_id=MessageId(0, 1), enqueued_at_ms=1, **late)  # type: ignore[arg-type]
    )
    found.run(30_000)
    assert [each.fate.marker.enqueued_at_ms for each in found.decided] == [1]
    found.run(60_000)
    assert [each.fate.marker.enqueued_at_ms for each in found.decided] == [1, 2]
    assert all(isinstance(each.fate, Redelivered) for each in found.decided)


def test_a_copy_beside_a_reused_id_duplicates_no_message() -> None:
    found = log(rewrite_after_ms=1_000)
    found.run(500)
    found.start(1, 60_000, enqueued_at_ms=1)
    found.read()
    found.now_ms += 1_500
    found.ask()

    def meanwhile() -> None:
        found.start(1, 60_000, enqueued_at_ms=2)
        found.append(
            Marker(type=MarkerType.END, message_id=MessageId(0, 1), origin_id=MessageId(0, 1), enqueued_at_ms=2)
        )

    while not found.transactions[-1].copies:
        assert found.step(meanwhile)
    found.run(120_000, 1_000)
    assert [each.fate.marker.enqueued_at_ms for each in found.decided] == [1]


def test_large_messages_go_in_transactions_of_a_few_megabytes() -> None:
    found = log()
    for number in range(10):
        found.append(
            Marker(
                type=MarkerType.START,
                message_id=MessageId(0, number),
                redeliver_after_ms=100,
                key=b"q",
                value=bytes(1_000_000),
            )
        )
    found.run(3_000)
    assert [len(each.fates) for each in found.transactions if each.fates] == [4, 4, 2]


def test_memory_is_bounded_by_messages_in_progress() -> None:
    messages = Messages()
    first = messages.add((0, 0), (0, 0, 0), b"q", b"", offset=0, now_ms=0, after_ms=10**9, timeout_ms=0)
    for number in range(1, 50_000):
        origin = (0, number, 0)
        each = messages.add((0, number), origin, b"q", b"", offset=number, now_ms=number, after_ms=10**9, timeout_ms=0)
        messages.remove(each)
    assert len(messages) == 1
    assert messages.first_offset() == first.offset == 0
    assert len(messages._by_offset) < 5_000
    assert len(messages._by_deadline) < 5_000


def test_offsets_are_committed_once_a_day_though_nothing_happens() -> None:
    found = log()
    found.run(3_000)
    before = len(found.transactions)
    found.tracking.next(found.now_ms / 1000 + 80_000)
    assert found.tracking.next(found.now_ms / 1000 + 80_000) is None
    again = found.tracking.next(found.now_ms / 1000 + 90_000)
    assert again is not None
    assert (again.offset, again.mark, len(found.transactions)) == (found.end, None, before)


def test_the_clock_stops_while_markers_are_unread() -> None:
    found = log()
    found.run(1_000)
    before = found.tracking.clock.now_ms
    found.start(1, 60_000)
    found.start(2, 60_000)
    for _ in range(4):
        found.now_ms += 500
        found.ask()
    assert found.tracking.clock.now_ms == before
    found.read()
    found.now_ms += 500
    found.ask()
    assert found.tracking.clock.now_ms >= before + 500, "and goes on once the markers were read"


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_a_message_also_started_by_kafka_mq_go_is_one(first: str) -> None:
    found = log(limit_of=lambda _: Limit(max_deliveries=5))
    found.run(500)
    starts = [{}, {"origin_id": MessageId(0, 1), "enqueued_at_ms": 77, "delivery_count": 3}]
    for fields in starts if first == "theirs" else starts[::-1]:
        found.start(1, 5_000, **fields)
    found.run(1_000)
    assert (fates(found), found.tracking.figures.counts["displaced"]) == ([], 0)
    found.crash(committing=False)
    found.run(20_000)
    (decided,) = found.decided
    assert (decided.fate.marker.enqueued_at_ms, decided.fate.marker.delivery_count) == (77, 4)
    found.crash(committing=False)
    found.run(20_000)
    assert len(found.decided) == 1


def test_kafka_mq_go_messages_with_one_id_differ_by_content() -> None:
    found = log()
    found.run(500)
    for content in (b"old", b"new"):
        found.append(
            Marker(
                type=MarkerType.START, message_id=MessageId(0, 1), redeliver_after_ms=60_000, key=b"q", value=content
            )
        )
    found.run(3_000)
    assert [each.fate.marker.value for each in found.decided] == [b"old"]
    found.run(80_000, 1_000)
    assert [each.fate.marker.value for each in found.decided] == [b"old", b"new"]


def test_an_end_without_an_origin_ends_the_older_message() -> None:
    found = log()
    found.run(500)
    found.start(1, 60_000)
    found.append(
        Marker(
            type=MarkerType.START,
            message_id=MessageId(0, 1),
            redeliver_after_ms=60_000,
            key=b"q",
            value=b"new",
            origin_id=MessageId(0, 1),
            enqueued_at_ms=5,
        )
    )
    found.end_of(1)
    found.run(80_000, 1_000)
    assert [each.fate.marker.value for each in found.decided] == [b"new"]


def test_a_start_without_a_queue_is_skipped() -> None:
    found = log()
    found.tracking.take(
        0, 1, b"", encode(Marker(type=MarkerType.START, message_id=MessageId(0, 1), redeliver_after_ms=1)), 1.0
    )
    assert len(found.tracking.messages) == 0
    assert found.tracking.figures.malformed[-1] == (0, "a Start names a queue of 0 bytes")


def test_a_mark_lost_by_the_broker_is_written_again() -> None:
    found = log()
    found.start(1, 100)
    found.read()
    found.ask()
    assert found.step()
    # As if a partition leader was elected that did not have the mark.
    found.records[1:] = []
    found.tracking.answered(found.now_ms / 1000, 1)
    found.tracking.position = 1
    found.run(25_000, 1_000)
    assert fates(found) == []
    found.run(30_000, 1_000)
    assert fates(found) == [(1, "delivery 2")]


def test_refused_messages_among_many_cost_few_transactions() -> None:
    found = log()
    found.run(500)
    for number in range(200):
        found.start(number, 100)
    tried = 0
    while len(found.decided) < 200:
        if (transaction := next_transaction(found)) is None:
            continue
        refused = [each for each in transaction.fates if isinstance(each, Redelivered) and int(each.marker.value) % 2]
        tried += 1
        if refused:
            found.tracking.refused(transaction, "too large")
        else:
            found.commit(transaction)
            found.tracking.committed(transaction, found.now_ms / 1000)
    assert tried < 1_000, "one by one, where every second one is refused"


def test_an_intervening_mark_does_not_enlarge_a_refused_batch() -> None:
    found = log()
    found.run(500)
    for number in range(8):
        found.start(number, 100)
    sizes = []
    for _ in range(40):
        if (transaction := next_transaction(found)) is None:
            continue
        if transaction.fates:
            sizes.append(len(transaction.fates))
            found.tracking.refused(transaction, "too large")
            # The refusal took so long that the broker counted as silent.
            found.now_ms += 5_000
        else:
            found.commit(transaction)
            found.tracking.committed(transaction, found.now_ms / 1000)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
