"""The effects of a protocol: each is one step for Kafka or the database to do, and names its answer.

A protocol is a generator of effects, without input or output of its own. In a worker, handlers perform them against
Kafka and the database. In a property test, a model of both performs them, and may stop at any effect. An error in a
handler ends the attempt: it is not sent into the protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.db.waits import Waits
from thresher.delivery.batch import FailingTransform
from thresher.delivery.fate import Kind
from thresher.delivery.progress import ProgressRecord
from thresher.delivery.row import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The parts of the control row that a shard needs, and the database's incarnation."""

    outbox_id: str
    term: str
    system_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why records were not delivered. The row at `place` is at fault; without a place, any row may be.

    With a `topic`, the whole topic is at fault. Without a `kind`, trying again may help. `passing`: the cause may pass,
    as a wrong clock does, so the row has a grace. `doubtful`: only a try of this row alone will show whether it is at
    fault. `refused_by`: the topic whose record the broker refused, if any of its rows may be at fault, or none is.
    """

    kind: Kind | None
    why: str
    place: int | None = None
    topic: str | None = None
    passing: bool = False
    doubtful: bool = False
    refused_by: str | None = None


# Effects, each with its answer.


@dataclass(frozen=True, slots=True)
class ReadControl:
    """Read the control row as it is now → `Control`."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The last transaction of a transactional id cannot end."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The claim that counts: its transactional id, and whether it is this attempt's."""

    id_index: int
    ours: bool


@dataclass(frozen=True, slots=True)
class Init:
    """Fence the last producer of a transactional id and end its transaction → None, or `Blocked`.

    Our own last producer, of whichever id, is discarded first, and a new one is made.
    """

    id_index: int = 0


@dataclass(frozen=True, slots=True)
class CheckTransactionEnded:
    """Ask, with a separate producer, whether the last transaction of an id that we left has ended → bool."""

    id_index: int


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Commit our claim to the progress partition, with the initialised producer → whether it certainly committed."""


@dataclass(frozen=True, slots=True)
class ReadHolder:
    """Read the progress partition, up to our claim if we have just written one → `Holder`."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Read committed progress up to its present end: our last record → list.

    If `whole`: every record that is still there, of all partitions → iterator.
    """

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """Start executing a committed progress record's fates in the table. `AwaitSettled` waits for the end."""

    progress: ProgressRecord
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AwaitSettled:
    """Wait until every settling that has begun is durable, at most `within_seconds` → whether it is."""

    within_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """Report that the last owner's rows are settled: reading may begin → what waited in earlier attempts, or None."""


@dataclass(frozen=True, slots=True)
class Take:
    """Take the next batch, read after `Init` → `Batch`, `NOTHING_YET`, or None to stop.

    With `wait`, the answer may take a moment. Rows of the `hot` keys are left out of further reads.
    """

    wait: bool = False
    hot: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class OpenAhead:
    """Open a transaction before its rows come, if rows came lately; end one that has waited too long without rows.

    → False if that failed: the producer must not be used again.
    """


@dataclass(frozen=True, slots=True)
class CloseAhead:
    """End the transaction that was opened ahead, if there is one. It has no rows."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Look up the status of these topics → `Surveyed`. A recent answer may be reused unless `fresh`."""

    topics: frozenset[str]
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction, unless one was opened ahead → False if that failed."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Hand the records of these rows to the client, in order → list of `Fault`."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until the broker has answered for every record → list of `Fault`.

    Meanwhile the `draft` of the progress record may be encoded; it is not sent.
    """

    draft: ProgressRecord | None = None


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Produce the progress record → whether the transaction can commit. `despite`: records failed and were left out."""

    progress: ProgressRecord
    despite: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit → True if it certainly committed. If it is not certain, only the committed progress can tell."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Abort the open transaction, all of whose records were answered for. The producer is not used again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave rows out of reads for a while: all rows of `topics`, all rows of `streams`, and single `rows`.

    Topics and keys are the stored ones. Raise the alarm about `missing`: topics that cannot be written to, or that lack
    the partition that a row names, each with its own reason. `why` is the reason of one of them.
    """

    topics: frozenset[str]
    why: str
    missing: Mapping[str, str] = field(default_factory=dict)
    streams: frozenset[tuple[str, bytes]] = frozenset()
    # Create times in microseconds, by id.
    rows: Mapping[int, int] = field(default_factory=dict)
    # Rows that must be sent after `rows`. Left out for longer: a look at them tells nothing new.
    behind: Mapping[int, int] = field(default_factory=dict)
    # Topics that are left out until `Unhold`: the gate asks the cluster about them, so their rows need not be read.
    lasting: frozenset[str] = frozenset()
    # No further row can be left out and there is nothing else to send: the shard pauses a moment.
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Unhold:
    """Read rows of these topics again."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Read rows of these held topics, a few at a time between other reads, unless an earlier sweep is not finished.

    → the topics of sweeps that have found no more rows since the last such effect: their hold has ended.
    """

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ListTopics:
    """Look up the names of all topics that the cluster shows us → a set of names; None if it did not answer."""


@dataclass(frozen=True, slots=True)
class Confine:
    """Read rows of these topics only, because others are too many to name in each read; None: of all that are not held.

    Rows of `existing` topics are looked for twice a second, and rows of all others once.
    """

    topics: frozenset[str] | None
    existing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KeepWaits:
    """Keep durably what waits, and for how long, in place of what was kept before; once all settling is durable."""

    waits: Waits


@dataclass(frozen=True, slots=True)
class WaitForTransform:
    """Raise the alarm about rows whose transform keeps failing, and pause the whole shard for a while."""

    failing: FailingTransform


@dataclass(frozen=True, slots=True)
class ReportRejected:
    """Report a rejected transaction: its topics, its number of records, and the reason."""

    topics: frozenset[str]
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Leave nothing out of reads any more: the rows that were left out come first again, by id."""


@dataclass(frozen=True, slots=True)
class Lift:
    """Clear the alarm about a topic that was held."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Remove the marks of rows that are marked and were not sent."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiscardReadAhead:
    """Forget all rows in flight and all batches read so far: the next batch is read from the head of the table."""


Effect = (
    ReadControl
    | Init
    | CheckTransactionEnded
    | WriteClaim
    | ReadHolder
    | ReadProgress
    | Settle
    | AwaitSettled
    | Recovered
    | Take
    | OpenAhead
    | CloseAhead
    | Survey
    | Begin
    | Produce
    | Flush
    | WriteProgress
    | Commit
    | Abandon
    | Hold
    | Release
    | ReportRejected
    | WaitForTransform
    | Lift
    | Unhold
    | Sweep
    | ListTopics
    | Confine
    | KeepWaits
    | DiscardReadAhead
    | Reset
)
# The function that performs each effect.
Handlers = dict[type[Effect], Any]
