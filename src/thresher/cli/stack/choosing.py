"""Which local stack a command uses: the one that `--stack` names, or the default one where nothing else is named.

A stack that is named goes before the environment and the file, as every flag does.
"""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from thresher.core.errors import InvalidInput
from thresher.devstack.kept import Endpoints, KeptStack, running_stacks

StackName = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME", help="Use the servers of the running local stack of this name."),
]


def named_endpoints(name: str) -> Endpoints:
    """Return where a stack is reached. Raises `InvalidInput` if it does not run."""
    if (endpoints := KeptStack(name).endpoints()) is None:
        raise InvalidInput(
            f"the stack {name!r} does not run: start it with 'thresher stack up --name {name}'{_others()}"
        )
    return endpoints


def stack_hint() -> str:
    """Return what to do where nothing names a server."""
    return f"name a local stack with --stack, or start one with 'thresher stack up'{_others()}"


def with_stack(flags: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Return the flags of a form with the servers of the named stack, as if they were flags. Raises `InvalidInput`."""
    kafka = flags.get("kafka") or {}
    if name is None:
        return dict(flags)
    if flags.get("data_source") is not None or "bootstrap.servers" in kafka:
        raise InvalidInput("--stack names the database and the broker: leave --data-source and --bootstrap out")
    endpoints = named_endpoints(name)
    return {
        **flags,
        "data_source": endpoints.dsn,
        "kafka": {**kafka, "bootstrap.servers": endpoints.bootstrap},
    }


def export_lines(endpoints: Endpoints) -> list[str]:
    """Return the lines for a shell that name the servers to every command and to programs of the README."""
    values = {"THRESHER_DS": endpoints.dsn, "THRESHER_BOOTSTRAP": endpoints.bootstrap}
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()]


def _others() -> str:
    running = running_stacks()
    return f" (running: {', '.join(running)})" if running else ""
