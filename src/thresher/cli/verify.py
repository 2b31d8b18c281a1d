"""`thresher verify`: compares a history with the records in Kafka, and reports lost, invented and repeated ones."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import (
    OutboxTable,
    SchemaName,
    TableShape,
    name_database,
    named_dsn,
    opened,
    require_no_flag,
    table_name,
)
from thresher.cli.output import AsJson, emit_json, emit_line, note, table
from thresher.cli.stack.choosing import StackName, named_endpoints, stack_hint
from thresher.config.property_pairs import properties
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.devstack.named_stack import NamedStack
from thresher.outbox import Shape
from thresher.testing.checker import FAULTS, Verdict, check
from thresher.testing.history import Transaction, read_history, topics_of

if TYPE_CHECKING:
    from thresher.testing.reading import Held

_LOOK_SECONDS = 0.5
_FIGURES = {
    "committed": "rows committed",
    "rolled_back": "rows rolled back",
    "unknown": "rows with an unknown outcome",
    "keys": "keys",
    "read": "records read",
    "repeated": "of them repeats, as allowed",
    "other_runs": "of them of other runs, not judged",
    "dead": "dead rows",
    "pending": "rows still in the outbox",
    "longest_silence_seconds": "longest time without a delivery, in seconds",
    "lost": "lost",
    "phantom": "phantom",
    "duplicated": "duplicated",
    "reordered": "out of order",
    "altered": "altered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The servers that a verification reads; without a `dsn`, it does not read the database."""

    bootstrap: str
    topics: Sequence[str]
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    dsn: str | None = field(default=None, repr=False)
    table: TableName = field(default_factory=lambda: TableName(table="outbox"))
    shape: Shape = Shape.THRESHER


def verify(
    history: Annotated[
        list[Path],
        typer.Option(
            help="History that 'thresher pump --history' wrote; several are checked together.",
            exists=True,
            dir_okay=False,
        ),
    ],
    bootstrap: Annotated[
        str | None, typer.Option(envvar="THRESHER_BOOTSTRAP", help="Kafka's brokers, as HOST:PORT[,HOST:PORT…].")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Topics to read; by default those of the history.")] = None,
    ds: Annotated[
        str | None,
        typer.Option(
            "--ds",
            "--data-source",
            envvar=["THRESHER_DS", "THRESHER_DATA_SOURCE"],
            show_envvar=True,
            help="Postgres connection string or URL, to read pending and dead rows too. THRESHER_DS_FILE names a "
            "file that holds it. Without --ds and --bootstrap, the running local stack is used.",
        ),
    ] = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    shape: TableShape = Shape.THRESHER,
    kafka: Annotated[list[str] | None, typer.Option(help="A property of the Kafka client, as key=value.")] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait at most while rows are pending or records or topics are missing.")
    ] = 0.0,
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="Allow repeats that directly follow their original.")
    ] = False,
    allow_dead: Annotated[int, typer.Option(help="Number of rows that may be dead.", min=0)] = 0,
    transformed: Annotated[
        bool,
        typer.Option("--transformed", help="Compare only the identities of records, because a transform changes them."),
    ] = False,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Report records of other runs as phantoms: nothing else wrote to the topics."),
    ] = False,
    examples: Annotated[int, typer.Option(help="Number of examples to show of each fault.", min=0)] = 5,
    as_json: AsJson = False,
) -> None:
    """Check that the records of 'thresher pump' arrived: none lost, invented, repeated, out of order or altered.

    Run it after the pump has ended. Records that other runs of the pump wrote to the same topics are counted and not
    checked: give the histories of those runs too. Exit code 1 if there is a fault, if more rows are dead than allowed,
    if rows are still pending, or if no row was committed.
    """
    if not 0 <= wait < math.inf:
        raise InvalidInput(f"--wait {wait}: a number of seconds, 0 or more")
    transactions = [each for path in history for each in read_history(path)]
    topics = topic or sorted({name for path in history for name in topics_of(path)})
    if not topics:
        raise InvalidInput(f"{history[0]} names no topic: give --topic")
    reached, dsn = _servers(bootstrap, ds, stack)
    if dsn is not None:
        name_database(dsn)
    sources = Sources(
        bootstrap=reached, topics=topics, kafka=properties(kafka, "--kafka"), dsn=dsn, table=table_name(outbox, schema),
        shape=shape,
    )  # fmt: skip
    verdict = judge(
        transactions, sources, wait_seconds=wait, repeats_allowed=at_least_once, allowed_dead=allow_dead,
        transformed=transformed, other_runs=not alone, examples=examples,
    )  # fmt: skip
    if as_json:
        emit_json(summary(verdict))
    else:
        _show(verdict)
    raise typer.Exit(0 if verdict.ok else 1)


def judge(
    transactions: Sequence[Transaction],
    sources: Sources,
    *,
    wait_seconds: float = 0.0,
    repeats_allowed: bool = False,
    allowed_dead: int = 0,
    transformed: bool = False,
    other_runs: bool = False,
    examples: int = 5,
) -> Verdict:
    """Read until no row is pending or lost, or until the time is up; return the last verdict.

    The topics are not read while rows are known to be pending, except at the end. A missing topic is waited for.
    """
    # Imported here: the other commands work without Kafka's client.
    from thresher.testing.reading import TopicMissing, read_topics  # noqa: PLC0415

    ours = {name for transaction in transactions for name in transaction.identities()}
    deadline = time.monotonic() + wait_seconds
    while True:
        last = time.monotonic() > deadline - _LOOK_SECONDS
        held = _held(sources)
        if last or held.tailed or ours.isdisjoint(held.pending):
            try:
                reads = read_topics(sources.bootstrap, sources.topics, config=sources.kafka)
            except TopicMissing:
                if last:
                    raise
                time.sleep(_LOOK_SECONDS)
                continue
            verdict = check(
                transactions,
                reads,
                dead=held.dead,
                pending=held.waiting(reads),
                repeats_allowed=repeats_allowed,
                allowed_dead=allowed_dead,
                transformed=transformed,
                other_runs=other_runs,
                examples=examples,
            )
            if last or not (verdict.pending or verdict.lost):
                return verdict
        time.sleep(_LOOK_SECONDS)


def summary(verdict: Verdict) -> dict[str, object]:
    """Return the verdict for scripts."""
    return {**asdict(verdict), "ok": verdict.ok, "objections": verdict.objections, "verdict": verdict.line()}


def _held(sources: Sources) -> "Held":
    from thresher.testing.reading import Held, rows_held  # noqa: PLC0415

    if sources.dsn is None:
        return Held(pending=frozenset(), dead=frozenset())
    with opened(sources.dsn) as connection:
        return rows_held(connection, sources.table, sources.shape)


def _servers(bootstrap: str | None, ds: str | None, stack: str | None) -> tuple[str, str | None]:
    """Return the brokers and the database that were given; if none was, those of the local stack."""
    if stack is not None:
        require_no_flag(ds)
        if bootstrap not in {None, os.environ.get("THRESHER_BOOTSTRAP")}:
            raise InvalidInput("--bootstrap and --stack both name the broker: leave one of them out")
        named = named_endpoints(stack)
        return named.bootstrap, named.dsn
    dsn = named_dsn(ds)
    if bootstrap:
        return bootstrap, dsn
    if dsn:
        raise InvalidInput("no Kafka: give --bootstrap along with --ds (or THRESHER_DS)")
    endpoints = NamedStack().endpoints()
    if endpoints is None:
        raise InvalidInput(f"no Kafka: give --bootstrap, {stack_hint()}")
    note("using Kafka and the database of the local stack")
    return endpoints.bootstrap, endpoints.dsn


def _show(verdict: Verdict) -> None:
    table(
        "The history and what was read",
        ["", "count"],
        [[label, _figure(getattr(verdict, name))] for name, label in _FIGURES.items()],
    )
    for name in ("pending", "dead", *FAULTS):
        lines = verdict.examples.get(name, ())
        if lines:
            count = getattr(verdict, name)
            emit_line(f"{_FIGURES[name]}: {count:,}" + (f", the first {len(lines)}" if len(lines) < count else ""))
            for line in lines:
                emit_line(f"  {line}")
    for line in verdict.objections:
        emit_line(line)
    emit_line(verdict.line())


def _figure(value: Any) -> str:
    return "unknown" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
