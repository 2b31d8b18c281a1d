"""Postgres servers for one test: it may stop, copy, restore and promote them, unlike the run's shared server."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.processes import open_directory
from thresher.devstack.postgres import Postgres, PostgresOptions
from thresher.devstack.server import run_tool


@contextmanager
def own_postgres(**settings: str) -> Iterator[Postgres]:
    """Yield a running server with an empty data directory; everything is removed at the end."""
    directory = open_directory()
    server = Postgres(directory / "postgres", PostgresOptions(durable=False, settings=settings), sweep=False)
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.server.end()
        shutil.rmtree(directory)


@contextmanager
def standby_of(primary: Postgres) -> Iterator[Postgres]:
    """Yield a hot standby of the primary; its files are removed at the end."""
    directory = open_directory()
    options = PostgresOptions(durable=False, settings={"primary_conninfo": primary.dsn(), "hot_standby": "on"})
    standby = Postgres(directory / "postgres", options, sweep=False)
    try:
        home = directory / "postgres"
        home.mkdir()
        home.chmod(0o777)
        data = home / "data"
        command: list[str | Path] = [
            standby.binaries / "pg_basebackup",
            "-d",
            primary.dsn(),
            "-D",
            data,
            "-c",
            "fast",
            "-X",
            "stream",
        ]
        status, output = run_tool(command, home, account=standby.account)
        assert status == 0, output
        home.chmod(0o711)
        (data / "standby.signal").touch()
        (home / "password").write_text(str(psycopg.conninfo.conninfo_to_dict(primary.dsn())["password"]))
        standby.prepare()
        standby.start()
        yield standby
    finally:
        standby.server.end()
        shutil.rmtree(directory)


def copy_data(source: Path, target: Path) -> None:
    """Copy a data directory with its owner."""
    if target.exists():
        shutil.rmtree(target)
    subprocess.run(["cp", "-a", source, target], check=True)


def data_of(server: Postgres) -> Path:
    """Return the server's data directory."""
    return server.data
