"""How much the outbox writer and the pump cost beside the bare driver, in one run on one database.

Each figure is a ratio of two measurements of the same rows in the same table shape on the same server, taken in turns
after a warm-up, medians of the rounds. The bare side is the best that psycopg itself does: COPY in binary format with
declared types, or a prepared INSERT. The last line printed is one JSON object.
"""

import argparse
import json
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from thresher.db import TableName, statement
from thresher.devstack.postgres import PostgresOptions
from thresher.devstack.stack import Stack
from thresher.outbox import Message, Outbox, Shape, create_schema
from thresher.outbox.admission import Admission, Limits, Row
from thresher.testing.pump import Fleet, Plan
from thresher.testing.pump.plan import loads

NAME = TableName(table="outbox")
COPY = statement("outbox_copy", NAME)
INSERT = statement("outbox_insert", NAME)
VALUE_BYTES, KEYS = 100, 1000


def messages(count: int) -> list[Message]:
    plan = Plan(dsn="", records=count, keys=KEYS, value_bytes=VALUE_BYTES, transaction_rows=count, run="bench")
    return next(loads(plan, 0)).messages


def bare_rows(batch: list[Message]) -> list[Row]:
    """The same rows as a program of one's own would hand them to the driver."""
    admit = Admission(Shape.THRESHER, Limits()).row
    return [(*row[:3], list(row[3]), list(row[4]), *row[5:]) for row in map(admit, batch)]


def bare_copy(connection: psycopg.Connection[Any], rows: list[Row]) -> None:
    with connection.cursor().copy(COPY) as copy:
        copy.set_types(["varchar", "bytea", "bytea", "text[]", "bytea[]", "int4", "timestamptz"])
        for row in rows:
            copy.write_row(row)


def bare_execute(connection: psycopg.Connection[Any], rows: list[Row]) -> None:
    for row in rows:
        connection.execute(INSERT, row)


def empty(connection: psycopg.Connection[Any]) -> None:
    connection.execute("TRUNCATE outbox")
    connection.commit()


def stash_each(outbox: Outbox, connection: psycopg.Connection[Any], batch: list[Message]) -> None:
    for message in batch:
        outbox.stash(connection, message)


def timed(connection: psycopg.Connection[Any], work: Callable[[], object]) -> float:
    empty(connection)
    start = time.perf_counter()
    work()
    connection.commit()
    return time.perf_counter() - start


def in_turns(connection: psycopg.Connection[Any], rounds: int, **works: Callable[[], object]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 2):  # two for warm-up
        # Each goes first in every other round, so that neither always follows the other's traces.
        for name, work in list(works.items())[:: 1 if number % 2 else -1]:
            seconds = timed(connection, work)
            if number >= 2:
                times[name].append(seconds)
    return {name: statistics.median(each) for name, each in times.items()}


def copier(dsn: str, plan: Plan, index: int, barrier: Barrier, results: Any) -> None:
    transactions = [bare_rows(load.messages) for load in loads(plan, index)]
    with psycopg.connect(dsn) as connection:
        barrier.wait()
        begin = time.monotonic_ns()
        for rows in transactions:
            bare_copy(connection, rows)
            connection.commit()
        results.put((begin, time.monotonic_ns()))


def four_copies(dsn: str, plan: Plan) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(plan.writers), context.Queue()
    writers = [context.Process(target=copier, args=(dsn, plan, n, barrier, results)) for n in range(plan.writers)]
    for writer in writers:
        writer.start()
    spans = [results.get() for _ in writers]
    for writer in writers:
        writer.join()
    return float(max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="measurements of stash and stash_many")
    parser.add_argument("--pump-rounds", type=int, default=3, help="measurements of the pump")
    parser.add_argument("--pump-records", type=int, default=200_000)
    parser.add_argument("--transaction", type=int, default=100, help="rows in a transaction of the pump")
    options = parser.parse_args()
    console = Console()
    many, single = messages(10_000), messages(2_000)
    many_rows, single_rows = bare_rows(many), bare_rows(single)
    outbox = Outbox("outbox")
    with Stack(postgres=PostgresOptions(durable=True)) as stack:
        dsn = stack.postgres.create_database("bench")
        stack.kafka.nodes[1].end()  # not measured here, and it would use the cores
        with psycopg.connect(dsn) as connection:
            create_schema(connection, NAME)
            bulk = in_turns(
                connection,
                options.rounds,
                ours=lambda: outbox.stash_many(connection, many),
                bare=lambda: bare_copy(connection, many_rows),
            )
            one = in_turns(
                connection,
                options.rounds,
                ours=lambda: stash_each(outbox, connection, single),
                bare=lambda: bare_execute(connection, single_rows),
            )
            plan = Plan(
                dsn=dsn, records=options.pump_records, keys=KEYS, value_bytes=VALUE_BYTES, writers=4,
                transaction_rows=options.transaction, run=secrets.token_hex(4),
            )  # fmt: skip
            pumped, copied = [], []
            for number in range(options.pump_rounds + 1):  # one for warm-up
                empty(connection)
                pump_seconds = Fleet(plan).run().seconds
                empty(connection)
                copy_seconds = four_copies(dsn, plan)
                if number:
                    pumped.append(pump_seconds)
                    copied.append(copy_seconds)
    pump, copies = statistics.median(pumped), statistics.median(copied)
    table = Table(title=f"rows of {VALUE_BYTES} byte values, {KEYS} keys, one header; durable Postgres 18; medians")
    for column in ("", "rows", "ours, rows/s", "bare, rows/s", "ratio"):
        table.add_column(column, justify="right")

    def show(what: str, rows: int, ours: float, bare: float) -> float:
        table.add_row(what, f"{rows:,}", f"{rows / ours:,.0f}", f"{rows / bare:,.0f}", f"{bare / ours:.2f}")
        return round(bare / ours, 3)

    figures = {
        "stash_many_vs_copy": show("stash_many / COPY", len(many), bulk["ours"], bulk["bare"]),
        "stash_vs_execute": show("stash / execute", len(single), one["ours"], one["bare"]),
        "pump_vs_copy": show(
            f"pump, 4 writers, {options.transaction} rows a transaction / 4 COPYs", plan.records, pump, copies
        ),
        "pump_rows_per_s": round(plan.records / pump),
    }
    console.print(table)
    console.print(f"rounds: {options.rounds} (2 warm-up), pump {options.pump_rounds} (1 warm-up)")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
