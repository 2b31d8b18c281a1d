"""Faults of the database and bad rows that take minutes, or need rights that a test may not have.

    ./run soak database [PART …]      all of: bloat, lock, disk, transform

bloat      5 million dead tuples in the table (--dead-rows), without and with a snapshot that can still see them
lock       the table locked for 30 s under load
disk       the database on a small file system that fills up, and gets room again; needs the right to mount
transform  one row among a hundred thousand or more (--rows) on which a transform fails

A part that cannot run on this machine is reported as a failure.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from tests.processes import open_directory
from tests.relay.database_load import moves, once_in_order, require_good, rows, writers
from tests.relay.load import Load
from tests.relay.relaying import Place
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.postgres import Postgres, PostgresOptions
from thresher.devstack.stack import Stack
from thresher.relay.settings import Settling
from thresher.testing.pump import PumpFailed

LONG_SECONDS = 600.0


class NotHere(Exception):  # noqa: N818
    """The part cannot be run on this machine."""


def bloat(stack: Stack, options: argparse.Namespace) -> str:
    at = Place(stack, stack.postgres.create_database("bloat"), "bloat-")
    at.sql("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    told, sent = [], 0
    for seen in (False, True):
        with psycopg.connect(at.dsn) as old:
            if seen:
                old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                old.execute("SELECT 1")
            at.sql(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
                " SELECT %s, convert_to('k' || n %% 1000, 'UTF8'), 'dead' FROM generate_series(1, %s) n",
                at.topic,
                options.dead_rows,
            )
            at.sql("DELETE FROM outbox")
            with at.relaying() as relaying:
                relaying.until(lambda: relaying.up, LONG_SECONDS)
                for _ in range(5):
                    began = time.monotonic()
                    at.stash(*rows(at.topic, range(sent, sent + 100)))
                    sent += 100
                    relaying.until(lambda: at.pending() == 0, LONG_SECONDS)
                    told.append(f"{time.monotonic() - began:.1f}")
        told.append("s without a snapshot that sees them," if not seen else "s with one")
    assert once_in_order(at, sent) == list(range(sent))
    return " ".join(told)


def lock(stack: Stack, _options: argparse.Namespace) -> str:
    at = Place(stack, stack.postgres.create_database("lock"), "lock-")
    with histories() as directory:
        with at.relaying() as relaying, writers(at, directory) as load:
            moves(at, relaying, LONG_SECONDS)
            with psycopg.connect(at.dsn) as locker:
                locker.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
                time.sleep(30.0)
            moves(at, relaying, LONG_SECONDS)
            restarts = [shard.restarts for shard in relaying.shards]
        return f"{finish(at, load)}; restarts {restarts}"


def disk(stack: Stack, options: argparse.Namespace) -> str:
    directory = open_directory()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={options.disk_mb}m,mode=711", "thresher-soak", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        shutil.rmtree(directory)
        raise NotHere("a small file system cannot be mounted here: run it as root")
    settings = {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_recycle": "off"}
    server = Postgres(directory / "postgres", PostgresOptions(durable=False, settings=settings), sweep=False)
    filler = directory / "filler"
    try:
        server.prepare()
        server.start()
        at = Place(stack, server.create_database("disk"), "disk-")
        # With `settle: stamp`, settling writes a new version of the row, and so needs disk space.
        with histories() as noted, at.relaying(settling=Settling.STAMP) as relaying:
            told = "nothing"
            first = writers(at, noted, value_bytes=1000, rate=None)
            try:
                with first:
                    moves(at, relaying, LONG_SECONDS)
                    fill(filler)
                    relaying.until(lambda: any(shard.last_error for shard in relaying.shards), 60.0)
                    time.sleep(10.0)
            except PumpFailed as error:
                told = " ".join(str(error).split())
            assert relaying.error is None, relaying.error
            met = {shard.last_error for shard in relaying.shards}
            filler.unlink()
            if not answers(server):
                server.server.kill()
                server.start()
            with writers(at, noted, value_bytes=1000) as second:
                moves(at, relaying, LONG_SECONDS)
            relaying.until(lambda: at.pending() == 0, LONG_SECONDS)
            return f"{require_good(at, first, second)}; writers were told: {told}; the relay met: {met}"
    finally:
        server.server.end()
        subprocess.run(["umount", "-l", str(directory)], check=True)
        directory.rmdir()


def fill(filler: Path) -> None:
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
            file.flush()


def answers(server: Postgres) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(server.dsn(), connect_timeout=5).close()
        return True
    return False


def transform(stack: Stack, options: argparse.Namespace) -> str:
    at = Place(stack, stack.postgres.create_database("transform"), "transform-")
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, convert_to('k' || n %% 1000, 'UTF8'),"
        " convert_to(CASE WHEN n = %s THEN 'bad' ELSE n::text END, 'UTF8') FROM generate_series(1, %s) n",
        at.topic,
        options.rows // 3,
        options.rows,
    )
    with at.relaying(transforms=("tests.relay.transforms:picky",)) as relaying:
        relaying.until(lambda: at.pending() == 0, LONG_SECONDS)
        assert all(shard.restarts == 0 for shard in relaying.shards)
    assert [row[1] for row in at.dead()] == ["transform"], at.dead()
    once_in_order(at, options.rows - 1)
    return f"{options.rows - 1} rows sent, 1 set aside"


@contextlib.contextmanager
def histories() -> Iterator[Path]:
    directory = open_directory()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def finish(at: Place, load: Load) -> str:
    with at.relaying() as relaying:
        relaying.until(lambda: at.pending() == 0, LONG_SECONDS)
    return require_good(at, load)


PARTS: dict[str, Callable[[Stack, argparse.Namespace], str]] = {
    "bloat": bloat,
    "lock": lock,
    "disk": disk,
    "transform": transform,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--dead-rows", type=int, default=5_000_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--disk-mb", type=int, default=200)
    options = parser.parse_args()
    failed = []
    with Stack(kafka=KafkaOptions(properties={"auto.create.topics.enable": "false"})) as stack:
        for name in options.parts or PARTS:
            began = time.monotonic()
            try:
                told = PARTS[name](stack, options)
            except (NotHere, AssertionError) as error:
                failed.append(name)
                told = f"FAILED: {error}"
            print(f"{name} ({time.monotonic() - began:.0f} s): {told}", flush=True)
    print(json.dumps({"ok": not failed, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
