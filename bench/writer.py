"""The cost of the outbox writer and the pump, compared with the plain driver, in one run on one database.

Each figure is the ratio of two measurements of the same rows, in the same table shape on the same server. Both are
medians of the rounds, taken in turns after a warm-up. The plain side is the fastest way of psycopg itself: COPY in
binary format with declared types, or a prepared INSERT. The last line printed is one JSON object.
"""

import argparse
import multiprocessing
import secrets
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg

from bench.measuring.place import durable_stack
from bench.measuring.report import report
from bench.measuring.rounds import Figures, in_turns, medians
from thresher.db import TableName, statement
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
    """The same rows, as a plain program would pass them to the driver."""
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
    many, single = messages(10_000), messages(2_000)
    many_rows, single_rows = bare_rows(many), bare_rows(single)
    outbox = Outbox("outbox")
    with durable_stack() as stack:
        dsn = stack.postgres.create_database("bench")
        stack.kafka.nodes[1].end()  # not measured here, and it would use CPU time
        plan = Plan(
            dsn=dsn, records=options.pump_records, keys=KEYS, value_bytes=VALUE_BYTES, writers=4,
            transaction_rows=options.transaction, run=secrets.token_hex(4),
        )  # fmt: skip
        with psycopg.connect(dsn) as connection:
            create_schema(connection, NAME)

            def pump() -> float:
                empty(connection)
                return Fleet(plan).run().seconds

            def copies() -> float:
                empty(connection)
                return four_copies(dsn, plan)

            sides: dict[str, Callable[[], float]] = {
                "stash_many": lambda: timed(connection, lambda: outbox.stash_many(connection, many)),
                "copy": lambda: timed(connection, lambda: bare_copy(connection, many_rows)),
            }
            seconds = medians(in_turns(sides, options.rounds, warm=2))
            sides = {
                "stash": lambda: timed(connection, lambda: stash_each(outbox, connection, single)),
                "execute": lambda: timed(connection, lambda: bare_execute(connection, single_rows)),
            }
            seconds |= medians(in_turns(sides, options.rounds, warm=2))
            seconds |= medians(in_turns({"pump": pump, "four_copies": copies}, options.pump_rounds, warm=1))
    rows = {"stash_many": len(many), "copy": len(many), "stash": len(single), "execute": len(single)}
    figures: Figures = {
        "stash_many_vs_copy": seconds["copy"] / seconds["stash_many"],
        "stash_vs_execute": seconds["execute"] / seconds["stash"],
        "pump_vs_copy": seconds["four_copies"] / seconds["pump"],
        **{f"{name}_rows_per_s": rows.get(name, plan.records) / each for name, each in seconds.items()},
    }
    report(
        "the writer and the pump beside the bare driver",
        figures,
        wanted={},
        settings={
            "value_bytes": VALUE_BYTES, "keys": KEYS, "headers": 1, "rounds": options.rounds,
            "pump_rounds": options.pump_rounds, "pump_records": plan.records, "transaction_rows": options.transaction,
        },
        note=f"rows of {VALUE_BYTES} byte values, {KEYS} keys, one header; durable Postgres 18; medians of "
        f"{options.rounds} rounds (2 warm-up), pump {options.pump_rounds} (1 warm-up), 4 writers, "
        f"{options.transaction} rows a transaction",
    )  # fmt: skip


if __name__ == "__main__":
    main()
