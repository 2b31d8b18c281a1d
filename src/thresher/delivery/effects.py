"""What the protocols ask of the world, one step at a time, and what the world answers.

A protocol (`exactly_once`, `mark_purge_reset`) is a generator of these; `lane` does them against Kafka and
Postgres, a test against a model of both. An error that an effect meets is raised where the effect is done and ends the
attempt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thresher.delivery.fate import Kind
from thresher.delivery.progress import Progress
from thresher.delivery.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a shard needs of the control row, and the database's incarnation."""

    outbox_id: str
    term: str
    system_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """Rows read together, from the head, in the order in which they must be sent."""

    rows: Sequence[Row]
    # Rows that transforms failed on in a row, up to the end of this lot.
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The topic is there, with so many partitions."""

    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """The topic is not there for us. Without a kind, that says nothing about its rows: they wait, however long."""

    kind: Kind | None
    why: str


Standing = Present | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """How topics stand, and when (monotonic)."""

    now: float
    standings: Mapping[str, Standing]


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
    """The control row as it is now → `Control`."""


@dataclass(frozen=True, slots=True)
class Init:
    """With a new producer, end and fence whatever this shard's transactional id was at, our own producer included."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """The committed progress, to an end sampled now: our last record → list, or all partitions' horizon → iterator."""

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """Begin to execute a committed record's fates in the table."""

    progress: Progress
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AwaitSettled:
    """Wait until everything begun is durable."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the last owner left has been settled."""


@dataclass(frozen=True, slots=True)
class Take:
    """The next lot, read after `Init` → `Lot`, or None when it is time to stop.

    Without `wait`, an empty one if there is none yet. Of the `hot` keys no more are wanted.
    """

    wait: bool = True
    hot: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """How these topics stand, as far as is known or asked anew → `Surveyed`."""

    topics: frozenset[str]
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Hand over the records among these rows, in order → list of `Fault`."""

    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until the broker has answered for every record → list of `Fault`. What will be noted can be written down
    meanwhile, and goes nowhere yet."""

    draft: Progress | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Produce the progress record. `despite` faults that were dealt with → whether the transaction can be committed."""

    progress: Progress
    despite: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit → whether that is certain. Exactly once, what is not certain ends the attempt."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave rows of these stored topics out of reads for a while, and raise the alarm about those that are missing."""

    topics: frozenset[str]
    why: str
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lift:
    """A topic that was held is there again."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Take the marks off rows that are marked and were not sent."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """Forget every row that is not settled and every lot read so far: the next one is read from the head."""


Effect = (
    ReadControl
    | Init
    | ReadProgress
    | Settle
    | AwaitSettled
    | Recovered
    | Take
    | Survey
    | Begin
    | Produce
    | Flush
    | Note
    | Commit
    | Hold
    | Lift
    | Renew
    | Reset
)
