"""Does what the protocols ask, against Kafka and Postgres: the shell of one attempt at one shard.

The functions `read` and `publish` are the ends of the pipeline that the engine runs in a Python worker of a Spark task.
The last one pulls, and recovers before it pulls: nothing is read before `init_transactions`.
"""

import gc
import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError

from thresher.core.clock import ServerClock
from thresher.db.problem import DatabaseLost
from thresher.delivery.batch import rows_of, transformed
from thresher.delivery.carrier import Rules, ShardIdentity
from thresher.delivery.crash_points import Seam, hook_of
from thresher.delivery.effects import (
    AwaitSettled,
    Begin,
    Commit,
    Control,
    Effect,
    Fault,
    Flush,
    Hold,
    Init,
    Lift,
    Lot,
    Note,
    Produce,
    ReadControl,
    ReadProgress,
    Recovered,
    Renew,
    Reset,
    Settle,
    Survey,
    Surveyed,
    Take,
)
from thresher.delivery.fate import Dead
from thresher.delivery.faults import Faults
from thresher.delivery.opening import Opening
from thresher.delivery.progress import Progress, decode, encode, merged
from thresher.delivery.row import Record, Row, Sendable, records_of
from thresher.delivery.settler import Settler
from thresher.delivery.topic_status import Standings
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import Tail
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal
from thresher.kafka.transactional import ProducerFenced, ProducerProblem, TransactionalProducer
from thresher.relay.leader.progress_topic import known_topic, progress_limit
from thresher.relay.names import buckets_of, progress_topic, sessions, transactional_id
from thresher.relay.protocol import exactly_once, mark_purge_reset
from thresher.relay.protocol.mark_purge_reset import Bounds
from thresher.relay.reading.marking import Marker, leader_id
from thresher.relay.reading.pending_rows import Head
from thresher.relay.reading.prefetch import ReadAhead
from thresher.relay.settings import Delivery, Mandate
from thresher.relay.settle import Settlement
from thresher.relay.shard.factory import connector_of, producer_of
from thresher.relay.shard.meter import Meter, counting_errors
from thresher.relay.store import store_of
from thresher.spark.worker.shard import Shard

_LOOK_SECONDS = 0.05
# An event has to fit into a frame.
_TOLD = 50
# The least that makes sense for a batch of the client's, and what it is without another word.
_LEAST_BATCH_BYTES, _BATCH_BYTES = 16_000, 1_000_000


def read(shard: Shard, _config: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Give the lots that are read ahead. The publisher has recovered by the time the first is asked for."""
    ahead: ReadAhead = shard.shared["ahead"]
    opening: Opening = shard.shared["opening"]
    settler: Settler = shard.shared["settler"]
    while not shard.stopping:
        batch = ahead.take(_LOOK_SECONDS)
        if batch is not None:
            yield batch
        else:
            opening.tend()
            settler.check()


@counting_errors
def publish(shard: Shard, config: Mapping[str, Any], batches: Iterator[pa.RecordBatch]) -> None:
    """Run the protocol to its end: the chain runs dry, or something fails."""
    mandate: Mandate = config["mandate"]
    # Rows come and go by the ten thousand and have no cycles: looking through them for some is in vain.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    lane = Lane(shard, mandate, batches)
    me = ShardIdentity(outbox_id=mandate.outbox_id, term=mandate.term, shard=shard.index)
    rules = Rules(
        poison=mandate.settings.poison,
        grace_seconds=mandate.settings.limits.grace_seconds,
        # Asked anew by each attempt: the one before may have failed because it was lowered.
        progress_bytes=lane.progress_bytes,
    )
    if mandate.settings.delivery is Delivery.AT_LEAST_ONCE:
        steps = mark_purge_reset.protocol(me, rules, Bounds.of(mandate.settings.limits))
    else:
        steps = exactly_once.protocol(me, rules)
    answer: Any = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration:
            return
        answer = lane.do(effect)


class Lane:
    """One attempt's producer, connections and threads."""

    def __init__(self, shard: Shard, mandate: Mandate, batches: Iterator[pa.RecordBatch]) -> None:
        settings = mandate.settings
        self._shard, self._mandate, self._settings = shard, mandate, settings
        self._batches = batches
        self._application = f"{sessions(settings.name, mandate.term)}/{shard.index}"[:63]
        store = store_of(settings, connector_of(settings.connection_factory))
        self._session = shard.enter(closing(store.session(self._application)))
        self._settlement = Settlement(self._session.settlement)
        self._marking = settings.delivery is Delivery.AT_LEAST_ONCE
        self._drawn = uuid.uuid4()
        self._hot: tuple[tuple[str, bytes], ...] = ()
        self._meter = Meter(shard)
        self._settler = shard.shared["settler"] = Settler(self._settle)
        shard.enter(closing(self._settler))
        self._ahead = ReadAhead(
            self._marker if self._marking else self._head,
            most_rows=settings.limits.mark_rows if self._marking else settings.limits.batch_rows,
            most_bytes=settings.limits.batch_bytes,
            poll_seconds=settings.limits.poll_seconds,
            window_rows=Bounds.of(settings.limits).window_rows if self._marking else None,
            rows_of=None if settings.transforms else lambda batch: rows_of(batch, self._progress),
        )
        shard.enter(closing(self._ahead))
        shard.shared["ahead"], shard.shared["failures"] = self._ahead, 0
        self._producer: TransactionalProducer | None = None
        self._admin = Admin.of(settings.kafka)
        self._standings = Standings(self._admin, self._partitions)
        self._progress = progress_topic(settings.name)
        self._faults = Faults(progress=self._progress, standings=self._standings, lenient=self._marking)
        self._hook = hook_of(mandate.hook)
        self._in_flight: list[int] = []
        self._produced: Sequence[Row] = ()
        self._taken: tuple[int, float] | None = None
        self._noted: Progress | None = None
        self._draft: tuple[Progress, bytes] | None = None
        self._since = ""
        # A transform may take longer over a lot than a broker waits for a transaction.
        self._opening = shard.shared["opening"] = Opening(
            lambda: self._client, self._progress_record(b""), ahead=not settings.transforms
        )
        self._clock: ServerClock | None = None
        # Smaller after a batch that was too large for its topic, though perhaps none of its records was.
        self._batch_bytes: int | None = None
        self._doings: dict[type[Effect], Callable[[Any], Any]] = {
            ReadControl: self._read_control,
            Init: self._init,
            ReadProgress: self._read_progress,
            Settle: lambda effect: self._settler.begin(effect.progress, effect.recovering),
            AwaitSettled: lambda _: self._settler.wait(),
            Recovered: self._recovered,
            Take: self._take,
            Survey: self._survey,
            Begin: self._begin,
            Produce: self._produce,
            Flush: self._flush,
            Note: self._note,
            Commit: self._commit,
            Hold: self._hold,
            Lift: self._lift,
            Renew: lambda _: self._ahead.renew(),
            Reset: self._reset,
        }

    @property
    def progress_bytes(self) -> int:
        """How large a progress record may be now."""
        return progress_limit(self._admin, self._settings)

    def do(self, effect: Effect) -> Any:
        """Do one step and return its answer."""
        return self._doings[type(effect)](effect)

    @property
    def _client(self) -> TransactionalProducer:
        if self._producer is None:
            raise AssertionError("init first")
        return self._producer

    def _head(self) -> Head:
        shard = self._shard
        return Head(self._settings, self._application, buckets_of(shard.index, shard.shards), self._since)

    def _marker(self) -> Marker:
        return Marker(
            self._mandate,
            self._application,
            buckets_of(self._shard.index, self._shard.shards),
            self._since,
            leader=self._leader,
            hot=lambda: self._hot,
        )

    def _leader(self, generation: int) -> uuid.UUID:
        return leader_id(self._drawn, generation)

    def _partitions(self, topic: str) -> int | KafkaError:
        return self._client.partitions(topic)

    def _seam(self, seam: Seam, rows: Sequence[int] | None = None) -> None:
        if self._hook is not None:
            self._hook(seam, self._shard.index, self._in_flight if rows is None else list(rows))

    # Recovery

    def _read_control(self, _: ReadControl) -> Control | None:
        row = self._session.control.read(self._settings.name)
        now = self._session.incarnation()
        self._since = now.since
        self._clock = ServerClock(now.now)
        if row is None:
            return None
        if self._producer is not None:
            self._seam(Seam.RECOVERY_CHECKED)
        return Control(outbox_id=row.outbox_id, term=row.term, system_id=row.system_id, incarnation=now.since)

    def _init(self, _: Init) -> None:
        name = transactional_id(self._settings.name, self._shard.index)
        if self._producer is not None:
            self._producer.discard()
        self._opening.forget()
        asked = {**self._settings.kafka, **self._settings.producer}
        if self._batch_bytes is not None:
            asked["batch.size"] = self._batch_bytes
        self._producer = TransactionalProducer(name, asked, make=producer_of(self._settings.producer_factory))
        self._producer.init(self._progress)
        self._seam(Seam.RECOVERY_FENCED)

    def _read_progress(self, effect: ReadProgress) -> Iterable[Progress]:
        if effect.whole:
            return merged(self._read_horizon())
        with Tail(self._progress, self._shard.index, self._settings.kafka) as tail:
            last = tail.last()
        # Behind the reading: another topic under the name may be empty, and rows that were sent would be sent again.
        known_topic(self._admin, self._settings.name, self._mandate.progress_topic_id)
        records = [] if last is None else [decode(last)]
        if records:
            self._shard.shared["failures"] = records[-1].failures
        self._seam(Seam.RECOVERY_READ)
        return records

    def _read_horizon(self) -> Iterator[Progress]:
        """Yield all progress of all partitions: a bucket may have been another shard's within the horizon."""
        topic = self._progress
        partitions = self._client.partitions(topic)
        if not isinstance(partitions, int):
            raise BrokerLost(f"the cluster did not say how {topic} stands: {partitions.str()}")
        for partition in range(partitions):
            mine = partition == self._shard.index
            with Tail(topic, partition, self._settings.kafka, fenced=mine) as tail:
                yield from map(decode, tail.whole())

    def _recovered(self, _: Recovered) -> None:
        self._seam(Seam.RECOVERED)
        self._meter.recovered()
        self._shard.event("relaying")
        self._ahead.start()

    # Settling, in the settler's thread

    def _settle(self, progress: Progress, recovering: bool) -> None:
        middle = Seam.RECOVERY_SETTLING if recovering else Seam.SETTLING
        began = time.monotonic()
        mark = self._leader(self._ahead.generation) if self._marking and not recovering else None
        found = self._settlement.execute(progress, lambda: self._seam(middle, progress.ids), mark)
        self._ahead.settled(progress.ids)
        if recovering and found:
            self._shard.count("recovered", found)
        if found < len(progress.ids):
            self._settlement.require_gone(progress, mark, recovering=recovering)
            if not recovering:
                # What has come under their ids meanwhile was passed over, and its followers may be in our hands.
                raise DatabaseLost(
                    f"{len(progress.ids) - found} of {len(progress.ids)} rows were gone, or marked by another, before "
                    "they were settled: somebody else is at work in this table, and the shard starts over"
                )
        if not recovering:
            self._meter.settled(time.monotonic() - began)
            self._seam(Seam.SETTLED, progress.ids)

    # Publishing

    def _take(self, effect: Take) -> Lot | None:
        self._hot = effect.hot
        if not effect.wait:
            if self._shard.stopping:
                return None
            if not self._ahead.ready:
                self._in_flight = []
                return Lot(rows=(), failures=self._shard.shared["failures"])
        self._learn()
        self._keep_time()
        if not self._ahead.ready:
            self._opening.ahead(lambda: self._ahead.ready)
        for batch in self._batches:
            lot = self._ahead.lots[batch.schema.metadata[b"lot"]]
            if not self._ahead.current(lot):
                continue
            if lot.result is not None:
                self._shard.shared["failures"] = lot.failures
            # A row in the progress topic would be taken for progress, and nobody could recover from it.
            if lot.result is None:
                rows = rows_of(lot.read, self._progress) if lot.rows is None else lot.rows
            else:
                rows = transformed(lot.batch, lot.result, lot.failed, self._progress)
            self._taken = (len(rows), time.monotonic())
            self._in_flight = [row.id for row in rows] if self._hook is not None else []
            return Lot(rows=rows, failures=lot.failures)
        with suppress(ProducerProblem):
            # Else whoever comes next ends it.
            self._opening.end()
        return None

    def _learn(self) -> None:
        if self._taken is not None:
            rows, began = self._taken
            self._ahead.pace(rows, time.monotonic() - began, self._settings.limits.batch_seconds)
            self._taken = None

    def _survey(self, effect: Survey) -> Surveyed:
        return self._standings.survey(effect.topics, fresh=effect.fresh)

    def _begin(self, _: Begin) -> None:
        self._seam(Seam.BEFORE_BEGIN)
        self._keep_time()
        self._opening.begin()
        self._meter.begun()
        self._produced = ()

    def _keep_time(self) -> None:
        """Tell the client the time, also for the empty record that opens a transaction."""
        if self._clock is not None:
            self._client.now_ms = self._clock.now_ms()

    def _produce(self, effect: Produce) -> list[Fault]:
        self._produced = effect.rows
        self._in_hand(len(effect.rows))
        if self._hook is not None:
            self._in_flight = [row.id for row in effect.rows]
        some = 0
        if self._hook is not None:
            some = len(effect.rows) // 2
            self._hand_over(effect.rows, 0, some)
            self._seam(Seam.PRODUCED_SOME)
        self._hand_over(effect.rows, some)
        return []

    def _hand_over(self, rows: Sequence[Row], first: int, last: int | None = None) -> None:
        if isinstance(rows, Sendable):
            part = rows[first:last]
            self._client.produce_columns(
                part.named, part.values, part.keys, part.partitions, part.headers, first=first
            )  # fmt: skip
        else:
            self._client.produce(itertools.islice(records_of(rows), first, last))

    def _in_hand(self, rows: int) -> None:
        """Report what is sent and not committed; a wave has one row of a key at most."""
        self._shard.gauge("in_flight_rows", rows)
        self._shard.gauge("in_flight_keys", rows if self._marking else 0)

    def _flush(self, effect: Flush) -> list[Fault]:
        if effect.draft is not None:
            # While the data is on its way.
            self._draft = (effect.draft, encode(effect.draft))
        undelivered = self._client.flush()
        self._opening.flushed(len(self._produced))
        self._seam(Seam.FLUSHED)
        faults = self._faults.of(undelivered, self._produced)
        if undelivered and not faults:
            self._client.forgive()
        if len(undelivered) > 1 and any(each.refusal is Refusal.SIZE for each in undelivered):
            now = self._batch_bytes or int(self._settings.producer.get("batch.size", _BATCH_BYTES))
            self._batch_bytes = max(_LEAST_BATCH_BYTES, now // 2)
        return faults

    def _note(self, effect: Note) -> bool:
        if effect.despite:
            self._client.forgive()
        drafted, text = self._draft or (None, b"")
        value = text if drafted is effect.progress else encode(effect.progress)
        self._client.produce([(0, self._progress_record(value))])
        self._noted, self._draft = effect.progress, None
        if not self._marking:
            return True
        failed = self._client.unforgiven
        self._faults.require_epoch(failed)
        if any(each.refusal is not Refusal.MOMENT for each in failed):
            raise BrokerLost(f"a record for {failed[0].topic} was not delivered: {failed[0].why}")
        return not failed

    def _progress_record(self, value: bytes) -> Record:
        return Record(self._progress, value, None, self._shard.index, 0, None)

    def _commit(self, _: Commit) -> bool:
        self._seam(Seam.BEFORE_COMMIT)
        try:
            self._client.commit()
        except ProducerFenced:
            raise
        except ProducerProblem as problem:
            if not self._marking:
                raise
            self._shard.event("in doubt", why=str(problem))
            return False
        self._opening.committed(len(self._produced))
        self._in_hand(0)
        self._seam(Seam.COMMITTED)
        self._tell()
        return True

    def _tell(self) -> None:
        """Count what the committed transaction carried, and say what it set aside."""
        if self._noted is None:
            return
        now_us = self._clock.now_us() if self._clock is not None else None
        self._meter.published(self._noted, self._produced, now_us)
        if self._noted.all_sent:
            return
        ids, fates = self._noted.ids, self._noted.fates
        dead = [(id_, fate) for id_, fate in zip(ids, fates, strict=True) if isinstance(fate, Dead)]
        if dead:
            self._shard.event("dead", rows=len(dead), first=dead[0][0], why=dead[0][1].reason)

    def _hold(self, effect: Hold) -> None:
        self._ahead.hold(effect.topics)
        self._shard.event("held", topics=sorted(effect.missing)[:_TOLD], of=len(effect.missing), why=effect.why)

    def _reset(self, effect: Reset) -> None:
        if effect.ids:
            marks = self._session.marks(self._settings.name, self._mandate.term)
            marks.reset(effect.ids, self._leader(self._ahead.generation))

    def _lift(self, effect: Lift) -> None:
        self._shard.event("lifted", topic=effect.topic)
