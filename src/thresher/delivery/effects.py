"""What a protocol asks of the world, one step at a time, and what the world answers.

A protocol is a generator of these effects. A shell does them against Kafka and a database; a property test does them
against a model of both, which may stop anywhere. An error that an effect meets is raised where the effect is done and
ends the attempt.
"""

from dataclasses import dataclass
from typing import Any

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

    With a topic, the fault is the whole topic's. Without a kind, trying again may help.
    """

    kind: Kind | None
    why: str
    place: int | None = None
    topic: str | None = None


# Effects, each with its answer.


@dataclass(frozen=True, slots=True)
class ReadControl:
    """Read the control row as it is now → `Control`."""


@dataclass(frozen=True, slots=True)
class Init:
    """With a new producer, end and fence whatever this shard's transactional id was at, our own producer included."""


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
    """Wait until every settling that has begun is durable."""


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
    """Open a transaction before its rows come, if rows came lately; end one that has waited in vain for too long."""


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
    """Open a transaction, unless one was opened ahead."""


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
    """Commit → whether that is certain. Exactly once, an uncertain commit ends the attempt instead."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave rows of these stored topics out of reads for a while, and raise the alarm about those that are missing."""

    topics: frozenset[str]
    why: str
    missing: frozenset[str] = frozenset()


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
    | Hold
    | Lift
    | DiscardReadAhead
    | Reset
)
# What a shell does for each effect.
Handlers = dict[type[Effect], Any]
