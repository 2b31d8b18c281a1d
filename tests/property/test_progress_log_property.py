"""One progress partition: a relay, foreign writers and trimming, in any order."""

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.property.examples import examples
from thresher.delivery.claims import UNCLAIMED, Claim
from thresher.delivery.progress_topic.progress_log import ProgressLog
from thresher.delivery.progress_topic.seal import Seal
from thresher.kafka.committed_tail import TailRecord
from thresher.relay.protocol.progress import Origin, Progress, decode, encode

OURS, SECRET, TOPIC = "ours", "secret", "orders.progress"
_WINDOW = 3


class Log:
    """A partition in memory, as `CommittedTail` shows it."""

    def __init__(self) -> None:
        self.kept: list[TailRecord] = []
        self.end = 0

    def append(self, value: bytes, headers: list[tuple[str, bytes | None]] | None = None, key: bytes = b"") -> int:
        self.kept.append(TailRecord(self.end, 0, key, value, tuple(headers or ())))
        self.end += 1
        return self.end - 1

    def sample(self) -> None:
        pass

    def windows(self) -> Iterator[Iterator[TailRecord]]:
        yield iter(self.kept[-_WINDOW:])
        yield iter(self.kept)

    def records(self) -> Iterator[TailRecord]:
        return (record for record in self.kept if record.value)

    def require_never_written(self) -> None:
        assert self.end == len(self.kept), "the relay's own records were trimmed"

    def close(self) -> None:
        pass


def content(number: int, outbox_id: str = OURS) -> bytes:
    origin = Origin(outbox_id=outbox_id, system_id="", incarnation="", term="", shard=0)
    return encode(Progress(origin=origin, number=number))


class Partition(RuleBasedStateMachine):
    """In any order of events, a relay finds its own records, and no foreign one."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.own: dict[int, int] = {}
        self.number = 0
        self.claim = UNCLAIMED
        self.written: set[bytes] = set()

    def opened(self) -> tuple[ProgressLog[Progress], Seal]:
        seal = Seal(secret=SECRET, topic=TOPIC, partition=0)
        return ProgressLog(self.log, seal, self.decoded), seal

    def decoded(self, value: bytes) -> Progress:
        assert value in self.written, "a stranger's record is decoded"
        return decode(value)

    # No record if no row came.
    @rule(records=st.integers(0, 4))
    def a_relay_recovers_and_writes(self, records: int) -> None:
        log, seal = self.opened()
        log.last()
        self.claim = Claim(id_index=0, claimant="ours", number=self.claim.number + 1)
        key = self.claim.encoded()
        self.log.append(b"", seal.headers(key, b""), key)
        for _ in range(records):
            self.number += 1
            value = content(self.number)
            self.written.add(value)
            self.own[self.log.append(value, seal.headers(key, value), key)] = self.number

    @rule(value=st.sampled_from([b"a row", content(99, "theirs")]), records=st.integers(1, 4))
    def a_stranger_writes(self, value: bytes, records: int) -> None:
        for _ in range(records):
            self.log.append(value)

    @rule(guess=st.sampled_from([None, "guessed"]), records=st.integers(1, 4))
    def a_stranger_claims(self, guess: str | None, records: int) -> None:
        key = Claim(id_index=0, claimant="theirs").encoded()
        headers = None if guess is None else Seal(secret=guess, topic=TOPIC, partition=0).headers(key, b"")
        for _ in range(records):
            self.log.append(b"", headers, key)

    @rule(guess=st.sampled_from([None, "guessed"]), records=st.integers(1, 4))
    def a_stranger_forges(self, guess: str | None, records: int) -> None:
        value = content(1_000)
        headers = None if guess is None else Seal(secret=guess, topic=TOPIC, partition=0).headers(b"", value)
        for _ in range(records):
            self.log.append(value, headers)

    @precondition(lambda self: self.own)
    @rule(share=st.floats(0, 1))
    def old_progress_is_trimmed(self, share: float) -> None:
        log, _ = self.opened()
        log.last()
        assert log.place is not None
        first = int(share * log.place.offset)
        self.log.kept = [record for record in self.log.kept if record.offset >= first]

    @invariant()
    def the_last_and_all_that_are_left_are_found(self) -> None:
        log, _ = self.opened()
        there = [self.own[record.offset] for record in self.log.kept if record.offset in self.own]
        last = log.last()
        assert (None if last is None else last.number) == (there[-1] if there else None)
        assert log.holder == self.claim
        log, _ = self.opened()
        assert [record.number for record in log.whole()] == there


TestPartition = Partition.TestCase
TestPartition.settings = settings(max_examples=examples(40), stateful_step_count=20)
