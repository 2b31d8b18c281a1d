"""`thresher stack`: a local Postgres and Kafka that run until they are stopped."""

import collections
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, emit_json, emit_line, emit_text, err, fetching, note, result, table
from thresher.cli.stack.choosing import export_lines, known_stacks, named_endpoints
from thresher.devstack.named_stack import Endpoints, NamedStack, Spec, all_stacks
from thresher.devstack.problem import StackProblem

app = Commands(help="Run a local Postgres and Kafka.", no_args_is_help=True)

Name = Annotated[
    str, typer.Option("--name", "--stack", metavar="NAME", help="Name of the stack. Several can run side by side.")
]
_KEEP_UP_SECONDS = 0.2
_DEFAULT = "default"


@app.command()
def up(
    name: Name = _DEFAULT,
    postgres_port: Annotated[
        int | None, typer.Option(help="Port of Postgres; a free one by default.", min=1, max=65535)
    ] = None,
    kafka_port: Annotated[
        int | None, typer.Option(help="Port of Kafka; a free one by default.", min=1, max=65535)
    ] = None,
    nodes: Annotated[int, typer.Option(help="Kafka nodes: 1, 2 or 3.", min=1, max=3)] = 1,
    kafka_version: Annotated[str, typer.Option(help="4.2.1, or 3.9.1 for old clients.")] = "4.2.1",
    fresh: Annotated[bool, typer.Option(help="Delete the data of an earlier run first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the stack and leave it running. 'down' keeps its data and its ports, unless they are discarded.

    The printed 'export' lines name the servers for every command, and for your own programs. 'thresher stack env'
    prints them again.
    """
    stack = NamedStack(name)
    if fresh:
        stack.down(discard=True)
    spec = Spec(kafka_version=kafka_version, nodes=nodes, postgres_port=postgres_port, kafka_port=kafka_port)
    before = stack.last_ports()
    with fetching() as progress, err.status("starting Postgres and Kafka"):
        endpoints = stack.up(spec, progress)
    if before not in {None, stack.last_ports()} and (postgres_port, kafka_port) == (None, None):
        note("a port of the last run is in use: the stack has new ports, so run the export lines below again")
    _show(stack, endpoints, as_json=as_json)


@app.command("env")
def print_environment(name: Name = _DEFAULT) -> None:
    """Print export lines that name the servers, for a shell: eval "$(thresher stack env)"."""
    for line in export_lines(named_endpoints(name)):
        emit_text(line)


@app.command()
def down(name: Name = _DEFAULT, discard: Annotated[bool, typer.Option(help="Delete the data.")] = False) -> None:
    """Stop the stack cleanly. Its data is kept, unless it is discarded."""
    stack = NamedStack(name)
    if name != _DEFAULT and not stack.known:
        raise StackProblem(f"there is no stack {name!r}; {known_stacks()}")
    stopped = stack.down(discard=discard)
    result(f"stack {name!r} {'stopped' if stopped else 'was not running'}{', data discarded' if discard else ''}")


@app.command()
def status(name: Name = _DEFAULT, as_json: AsJson = False) -> None:
    """Show whether the stack runs, and its addresses; exit code 1 if it does not run."""
    stack = NamedStack(name)
    endpoints = stack.endpoints()
    if endpoints is None:
        state = "starting" if stack.running else ("stopped, data kept" if stack.exists else "not there")
        if as_json:
            emit_json({"name": name, "running": False, "state": state})
        else:
            result(f"stack {name!r}: {state}")
            if not stack.exists:
                note(known_stacks())
        raise typer.Exit(1)
    _show(stack, endpoints, as_json=as_json)


@app.command("list")
def list_stacks(as_json: AsJson = False) -> None:
    """List all stacks that run or have data, with their addresses."""
    found = [(name, NamedStack(name).endpoints()) for name in all_stacks()]
    if as_json:
        stacks = [{"name": name, "running": at is not None, **(asdict(at) if at else {})} for name, at in found]
        emit_json({"stacks": stacks})
        return
    table(
        "Stacks",
        ["name", "state", "Kafka", "Postgres"],
        [
            [name, "running" if at else "stopped, data kept", at.bootstrap if at else "", at.dsn if at else ""]
            for name, at in found
        ],
        rest="'thresher stack status --stack NAME'",
    )


@app.command()
def logs(
    server: Annotated[str | None, typer.Argument(help="postgres, kafka-1, …; all by default.")] = None,
    name: Name = _DEFAULT,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of last lines to show.", min=0)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False,
) -> None:
    """Show the logs of the servers."""
    found = NamedStack(name).logs()
    if server is not None and server not in found:
        raise StackProblem(f"stack {name!r} has no log of {server!r}; there are: {', '.join(found) or 'none'}")
    wanted = {server: found[server]} if server is not None else found
    places = {}
    for each, path in wanted.items():
        text, places[each] = _last_lines(path, lines)
        for line in text:
            emit_line(line if server else f"{each}: {line}")
    while follow:
        time.sleep(_KEEP_UP_SECONDS)
        for each, path in wanted.items():
            with path.open(encoding="utf-8", errors="replace") as log:
                log.seek(places[each])
                for line in log:
                    emit_line(line.rstrip("\n") if server else f"{each}: {line.rstrip()}")
                places[each] = log.tell()


def _last_lines(path: Path, lines: int) -> tuple[list[str], int]:
    with path.open(encoding="utf-8", errors="replace") as log:
        kept = collections.deque((line.rstrip("\n") for line in iter(log.readline, "")), maxlen=lines)
        return list(kept), log.tell()


def _show(stack: NamedStack, endpoints: Endpoints, *, as_json: bool) -> None:
    # Imported here: the other commands work without the driver.
    import psycopg  # noqa: PLC0415

    answering = {
        "postgres": _answers(psycopg.conninfo.conninfo_to_dict(endpoints.dsn)),
        "kafka": all(_answers(_address(each)) for each in endpoints.bootstrap.split(",")),
    }
    if as_json:
        emit_json({"name": stack.name, "running": True, "answering": answering, **asdict(endpoints)})
        raise typer.Exit(0 if all(answering.values()) else 1)
    for server, answers in answering.items():
        if not answers:
            note(f"{server} does not answer: see 'thresher stack logs'")
    emit_text(f"Postgres  {endpoints.dsn}\nKafka     {endpoints.bootstrap}\nData      {stack.directory}\n")
    for line in export_lines(endpoints):
        emit_text(line)
    raise typer.Exit(0 if all(answering.values()) else 1)


def _address(text: str) -> dict[str, str]:
    host, _, port = text.rpartition(":")
    return {"host": host, "port": port}


def _answers(address: Mapping[str, object]) -> bool:
    try:
        socket.create_connection((str(address["host"]), int(str(address["port"]))), timeout=2).close()
    except OSError:
        return False
    return True
