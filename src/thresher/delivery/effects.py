"""What a protocol asks of the world, one step at a time, and what the world answers.

A protocol is a generator of these effects. A shell does them against Kafka and a database; a property test does them
against a model of both, which may stop anywhere. An error that an effect meets is raised where the effect is done and
ends the attempt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.delivery.batch import FailingTransform
from thresher.delivery.fate import Kind
from thresher.delivery.progress import ProgressRecord
from thresher.delivery.row import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a shard needs of the control row, and the database's incarnation."""

    outbox_id: str
    term: str
    system_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What kept records from being delivered: one row where its place is known, any of them where it is not.

    With a topic, the fault is the whole topic's. Without a kind, trying again may help. `passing`: the reason may
    pass, as a wrong clock does, and the row has a grace. `doubtful`: whether it was this row, and why, a try of the row
    alone will tell.
    """

    kind: Kind | None
    why: str
    place: int | None = None
    topic: str | None = None
    passing: bool = False
    doubtful: bool = False


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
    """Whose claim counts: through which lane it came, and whether it is this attempt's."""

    lane: int
    ours: bool


@dataclass(frozen=True, slots=True)
class Init:
    """With a new producer, end and fence whatever a lane of this shard was at → None, or `Blocked`.

    Our own producer is gone before that, whatever its lane was.
    """

    lane: int = 0


@dataclass(frozen=True, slots=True)
class TryLane:
    """With a producer of its own, see whether the last transaction of a lane that we left has ended → bool."""

    lane: int


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Commit our claim to the progress partition, through the producer that was initialised → whether it is certain."""


@dataclass(frozen=True, slots=True)
class ReadHolder:
    """Read the progress partition, up to our claim if we have just written one → `Holder`."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Read committed progress, to an end sampled now: our last record → list, or all partitions' horizon → iterator."""

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """Begin to execute a committed record's fates in the table."""

    progress: ProgressRecord
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AwaitSettled:
    """Wait until every settling that has begun is durable, at most so long → whether it is."""

    within_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """Reading may begin: what the last owner left has been settled."""


@dataclass(frozen=True, slots=True)
class Take:
    """Take the next batch, read after `Init` → `Batch`, `NOTHING_YET`, or None when it is time to stop.

    With `wait`, the answer may take a moment. No more rows of the `hot` keys are wanted.
    """

    wait: bool = False
    hot: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class OpenAhead:
    """Open a transaction before its rows come, if rows came lately; end one that has waited in vain for too long.

    False if that did not succeed: the producer is not used again.
    """


@dataclass(frozen=True, slots=True)
class CloseAhead:
    """End a transaction that was opened ahead and carries nothing, if there is one."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Look up the status of these topics, as far as it is known or asked anew → `Surveyed`."""

    topics: frozenset[str]
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction, unless one was opened ahead. False if that did not succeed."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Hand over the records among these rows, in order → list of `Fault`."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until the broker has answered for every record → list of `Fault`.

    The draft of the progress record can be encoded meanwhile, and is not sent yet.
    """

    draft: ProgressRecord | None = None


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Produce the progress record, `despite` faults that were dealt with → whether the transaction can commit."""

    progress: ProgressRecord
    despite: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit → whether that is certain. If it is not, only the committed progress can tell."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Abort the open transaction, whose records were all answered for. The producer is not used again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave rows out of reads for a while: of these stored topics, of these keys of a stored topic, and these rows.

    Raise the alarm about the topics that are missing, or that lack what a row needs.
    """

    topics: frozenset[str]
    why: str
    missing: frozenset[str] = frozenset()
    streams: frozenset[tuple[str, bytes]] = frozenset()
    # Create times in microseconds, by id.
    rows: Mapping[int, int] = field(default_factory=dict)
    # Rows that are sent behind those: left out for longer, since nothing is learned from them.
    behind: Mapping[int, int] = field(default_factory=dict)
    # No other row can be left out, and nothing else is to be sent: the shard rests a moment.
    resting: bool = False


@dataclass(frozen=True, slots=True)
class WaitForTransform:
    """Raise the alarm about rows that wait for a transform, and wait a while: the shard does nothing else meanwhile."""

    failing: FailingTransform


@dataclass(frozen=True, slots=True)
class ReportRejected:
    """Report that a transaction with so many records was rejected: of which topics, and why."""

    topics: frozenset[str]
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Leave nothing out of reads any more: rows that were left out are to be sent before others, by id."""


@dataclass(frozen=True, slots=True)
class Lift:
    """Clear the alarm about a topic that was held."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Take the marks off rows that are marked and were not sent."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiscardReadAhead:
    """Forget every row that is not settled and every batch read so far: the next one is read from the head."""


Effect = (
    ReadControl
    | Init
    | TryLane
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
    | DiscardReadAhead
    | Reset
)
# What a shell does for each effect.
Handlers = dict[type[Effect], Any]
