"""Which local stack a command uses: the one that `--stack` names, or the default one where nothing else is named.

A stack that is named goes before the environment and the file, as every flag does.
"""

import os
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from thresher.core.errors import InvalidInput
from thresher.devstack.kept import Endpoints, KeptStack, all_stacks, running_stacks

# The key of queues for the broker.
_SERVERS = "bootstrap-servers"
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
    database, broker = flags.get("data_source"), kafka.get("bootstrap.servers")
    # What the environment says comes as a flag too, and gives way.
    if not (_is_of(database, "THRESHER_DS", "THRESHER_DATA_SOURCE") and _is_of(broker, "THRESHER_BOOTSTRAP")):
        raise InvalidInput("--stack names the database and the broker: leave --data-source and --bootstrap out")
    endpoints = named_endpoints(name)
    return {
        **flags,
        "data_source": endpoints.dsn,
        "kafka": {**kafka, "bootstrap.servers": endpoints.bootstrap},
    }


def with_broker(flags: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Return the flags of queues' form with the named stack's broker, as if it was a flag. Raises `InvalidInput`."""
    if name is None:
        return dict(flags)
    if not _is_of(flags.get(_SERVERS), "THRESHER_BOOTSTRAP_SERVERS"):
        raise InvalidInput("--stack names the broker: leave --bootstrap-servers out")
    return {**flags, _SERVERS: named_endpoints(name).bootstrap}


def known_stacks() -> str:
    """Return a sentence on the stacks that there are."""
    names = all_stacks()
    return f"there are: {', '.join(names)}" if names else "there is none: start one with 'thresher stack up'"


def _is_of(value: str | None, *variables: str) -> bool:
    """Whether a value is absent, or that of one of these variables."""
    return value is None or value in {os.environ.get(variable) for variable in variables}


def export_lines(endpoints: Endpoints) -> list[str]:
    """Return the lines for a shell that name the servers to every command and to programs of the README."""
    values = {"THRESHER_DS": endpoints.dsn, "THRESHER_BOOTSTRAP": endpoints.bootstrap}
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()]


def _others() -> str:
    running = running_stacks()
    return f" (running: {', '.join(running)})" if running else ""
