"""`thresher pump`: the load generator, which fills an outbox with records at a chosen rate."""

import dataclasses
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from thresher.cli.options import (
    DataSource,
    OutboxTable,
    SchemaName,
    TableShape,
    connect,
    resolve_dsn,
    table_name,
)
from thresher.cli.output import AsJson, counted, emit_json, emit_text, note, out, sentence, working
from thresher.cli.stack.choosing import StackName
from thresher.core.signals import stopped_by_signals
from thresher.outbox import SchemaRefused, Shape, check_schema
from thresher.testing.history import HistoryWriter
from thresher.testing.pump import Fleet, Plan, Tally


def pump(
    keys: Annotated[int, typer.Option(help="Number of unique keys.")],
    records: Annotated[int, typer.Option(help="Number of records to generate.")],
    interval: Annotated[float, typer.Option(help="Milliseconds between records of a writer.")] = 0.0,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    shape: TableShape = Shape.THRESHER,
    topic: Annotated[str, typer.Option(help="Kafka topic of the records.")] = "pump",
    blank: Annotated[bool, typer.Option("--blank", help="Write records without a value (tombstones).")] = False,
    value_size: Annotated[int, typer.Option(help="Size of each value, in bytes.")] = 100,
    transaction: Annotated[int, typer.Option(help="Records per transaction.")] = 20,
    rollback: Annotated[float, typer.Option(help="Share of transactions that are rolled back, 0 to 1.")] = 0.0,
    writers: Annotated[int, typer.Option(help="Number of writers, each with its own process and connection.")] = 1,
    own_keys: Annotated[
        bool,
        typer.Option(
            "--own-keys/--shared-keys", help="Whether each key belongs to one writer, or all writers share all keys."
        ),
    ] = False,
    skew: Annotated[
        float, typer.Option(help="Zipf exponent of the keys: 0 for equal shares, 1 for a few hot keys.")
    ] = 0.0,
    varied: Annotated[
        float,
        typer.Option(
            help="Share of records without a key, and also of records with more headers, with a partition and with a "
            "timestamp, 0 to 1."
        ),
    ] = 0.0,
    rate: Annotated[
        float | None, typer.Option(help="Records per second of all writers together; unlimited by default.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Append every transaction and its outcome to this JSON lines file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same load.")] = 0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a database that is not available.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Fill the outbox with records. Ctrl-C stops after the current transactions.

    The exit code is 0 even if the outcome of some transactions is unknown (lost connection): the summary counts them.
    """
    plan = Plan(
        dsn=ds or "", records=records, keys=keys, table=outbox, schema=schema, shape=shape, topic=topic, blank=blank,
        value_bytes=value_size, writers=writers, transaction_rows=transaction, rollback_share=rollback,
        interval_milliseconds=interval, rate=rate, skew=skew, own_keys=own_keys, varied=varied,
        started=datetime.now(UTC), seed=seed, run=secrets.token_hex(4), history=history, patience_seconds=patience,
    )  # fmt: skip
    plan = dataclasses.replace(plan, dsn=resolve_dsn(ds, stack))
    if history is not None:
        HistoryWriter(history, plan.run).close()  # fails now if the file cannot be written
    with connect(plan.dsn) as connection:
        check = check_schema(connection, table_name(outbox, schema), shape)
    if not check.usable:
        reasons = "\n".join(map(str, check.findings))
        raise SchemaRefused(f"the outbox cannot be used ('thresher schema create' makes one):\n{reasons}")
    tally = run(plan)
    if as_json:
        emit_json(summary(plan, tally))
    else:
        out.print(
            f"{counted(tally.committed, 'record', 'records')} committed, {tally.rolled_back:,} rolled back, "
            f"{tally.unknown:,} unknown, in "
            f"{tally.transactions:,} transactions and {tally.seconds:.2f} s: {rate_of(tally):,.0f} rec/s"
        )
        for line in belonging(plan, given_ds=ds, stack=stack, environment=os.environ):
            # A command is copied as a whole: the terminal may break it, and we do not.
            (emit_text if line.startswith("  ") else sentence)(line)


def run(plan: Plan) -> Tally:
    """Run a plan with a progress bar. SIGINT and SIGTERM stop it after the current transactions."""
    fleet = Fleet(plan)
    with (
        stopped_by_signals(fleet.stop, lambda _status: fleet.stop()),
        working("pumping", plan.records) as progress,
    ):

        def show(tally: Tally) -> None:
            progress.update(progress.task_ids[0], completed=tally.rows, rate=f"{rate_of(tally):,.0f}")

        tally = fleet.run(show)
    if tally.rows < plan.records:
        note(f"stopped after {tally.rows:,} of {plan.records:,} records")
    return tally


def belonging(plan: Plan, *, given_ds: str | None, stack: str | None, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the topic and the history of the run, and the command that checks them when the rows are relayed."""
    yield f"run {plan.run} wrote to the topic {plan.topic}" + (
        f"; its history is in {plan.history}"
        if plan.history is not None
        else " and kept no history: with --history FILE, 'thresher verify' can tell what arrived"
    )
    if plan.history is None:
        return
    command = ["thresher", "verify", "--history", str(plan.history)]
    if stack is not None:
        command += ["--stack", stack]
    elif given_ds is not None:
        # 'verify' reads the same environment. A flag's value is not repeated: it may hold a password.
        if given_ds not in {environment.get("THRESHER_DS"), environment.get("THRESHER_DATA_SOURCE")}:
            command += ["--ds", "DATA_SOURCE"]
        if not environment.get("THRESHER_BOOTSTRAP"):
            command += ["--bootstrap", "HOST:PORT"]
    for name, value, default in (
        ("--outbox", plan.table, "outbox"),
        ("--schema", plan.schema, None),
        ("--shape", plan.shape, Shape.THRESHER),
    ):
        if value not in {None, default}:
            command += [name, str(value)]
    yield "check it once it is relayed:"
    yield f"  {shlex.join([*command, '--wait', '30'])}"


def rate_of(tally: Tally) -> float:
    """Return the committed records per second."""
    return tally.committed / tally.seconds if tally.seconds else 0.0


def summary(plan: Plan, tally: Tally) -> dict[str, object]:
    """Return the run in figures, for scripts."""
    return {
        "run": plan.run,
        "topic": plan.topic,
        "records": tally.rows,
        "committed": tally.committed,
        "rolled_back": tally.rolled_back,
        "unknown": tally.unknown,
        "transactions": tally.transactions,
        "seconds": round(tally.seconds, 6),
        "rows_per_s": round(rate_of(tally), 1),
        "writers": plan.writers,
        "keys": plan.keys,
        "value_bytes": 0 if plan.blank else plan.value_bytes,
        "transaction_rows": plan.transaction_rows,
        "seed": plan.seed,
        "history": None if plan.history is None else str(plan.history),
    }
