"""`thresher demo`: the product on real servers, from nothing to something to look at, and away again."""

import logging
import os
import secrets
import signal
from typing import Any

import psycopg

from thresher.cli.output import err, fetching, out, table
from thresher.cli.pump import run
from thresher.cli.squares import pipeline
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Message, Outbox, create_schema
from thresher.spark.engine import Engine
from thresher.spark.supervision import Phase
from thresher.testing.pump import Plan, Tally

_TOPIC = "demo.orders"
_SQUARES, _NUMBERS = "demo.squares", 10_000


def show(records: int) -> bool:
    """Bring everything up, use it, show it and clean up; False if a count is not what it should be."""
    with fetching() as progress, err.status("starting Postgres and Kafka"):
        stack = Stack(progress=progress)
        stack.start()
    try:
        out.print(f"Postgres on port {stack.postgres.port} and Kafka on {stack.kafka.bootstrap} are up")
        Admin(stack.kafka.bootstrap).create_topic(_TOPIC, partitions=4)
        dsn = stack.postgres.create_database("demo")
        with psycopg.connect(dsn) as connection:
            create_schema(connection, TableName(table="outbox"))
            connection.execute("CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY, item TEXT NOT NULL)")
        stored = _business(dsn)
        tally = run(
            Plan(
                dsn=dsn,
                records=records,
                keys=100,
                topic=_TOPIC,
                writers=2,
                rollback_share=0.1,
                skew=0.8,
                run=secrets.token_hex(4),
            )
        )
        return _pipeline(stack) and _show(stack, dsn, tally, stored)
    finally:
        stack.stop()


def _business(dsn: str) -> int:
    """Commit an order with its message, roll another pair back; return how many of each must be there."""
    outbox = Outbox("outbox")
    with psycopg.connect(dsn) as connection:
        for item, kept in (("a scythe", True), ("a flail", False)):
            connection.execute("INSERT INTO orders (item) VALUES (%s)", [item])
            outbox.stash(connection, Message(topic=_TOPIC, key=item, value="ordered", headers=[("from", b"demo")]))
            if kept:
                connection.commit()
            else:
                connection.rollback()
    out.print("two orders placed with their messages: one committed, one rolled back, message and all")
    return 1


def _pipeline(stack: Stack) -> bool:
    """Run a pipeline on Spark, kill one of its workers on the way, and see it through."""
    Admin(stack.kafka.bootstrap).create_topic(_SQUARES, partitions=2)
    engine = Engine(pipeline(bootstrap=stack.kafka.bootstrap, topic=_SQUARES, numbers=_NUMBERS))
    # Its warnings are about the worker that is killed here on purpose.
    logging.getLogger("thresher.spark").setLevel(logging.ERROR)
    with err.status("starting Spark"):
        engine.start()
        while not engine.done and not all(shard.counts for shard in engine.snapshot().shards):
            engine.wait(0.05)
    if (victim := engine.snapshot().shards[0].pid) is not None:
        os.kill(victim, signal.SIGKILL)
    with err.status("squaring numbers into Kafka, after a worker was killed"):
        ended = engine.wait()
    table(
        "A pipeline on Spark, one of whose workers was killed",
        ["shard", "state", "attempts", "restarts", "squares", "last error"],
        [
            [str(s.shard), s.state, str(s.attempt), str(s.restarts), str(s.counts.get("squares")), s.last_error or ""]
            for s in ended.shards
        ],
    )
    return all(shard.state is Phase.FINISHED for shard in ended.shards) and ended.shards[0].restarts == 1


def _show(stack: Stack, dsn: str, tally: Tally, stored: int) -> bool:
    with psycopg.connect(dsn) as connection:
        (in_outbox,) = _row(connection, "SELECT count(*) FROM outbox")
        (orders,) = _row(connection, "SELECT count(*) FROM orders")
        newest = connection.execute(
            "SELECT id, create_time, convert_from(kafka_key, 'UTF8'), octet_length(kafka_value), kafka_header_keys,"
            " bucket FROM outbox ORDER BY id DESC LIMIT 5"
        ).fetchall()
    expected = tally.committed + stored
    table(
        "The last rows of the outbox",
        ["id", "created", "key", "value bytes", "headers", "bucket"],
        [[str(row[0]), f"{row[1]:%H:%M:%S.%f}", row[2], str(row[3]), ",".join(row[4]), str(row[5])] for row in newest],
    )
    topics = Admin(stack.kafka.bootstrap).topics()
    table(
        "On the broker",
        ["topic", "partitions", "records"],
        [[t.name, str(t.partitions), str(t.records)] for t in topics],
    )
    right = in_outbox == expected and orders == stored and tally.rolled_back > 0
    out.print(
        f"outbox: {in_outbox:,} rows of {expected:,} committed, waiting for a relay; "
        f"{tally.rolled_back:,} more were rolled back and left no trace"
    )
    out.print("[green]as it should be[/]" if right else f"[red]not as it should be: {expected:,} rows were expected[/]")
    return right


def _row(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    row = connection.execute(query.encode()).fetchone()
    return row if row is not None else (0,)
