"""Chooses the local stack of a command: the one that `--stack` names, or the default one if no server is named.

Like every flag, `--stack` overrides the environment and the file.
"""

import os
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from thresher.core.errors import InvalidInput
from thresher.devstack.named_stack import Endpoints, NamedStack, all_stacks, running_stacks

# The configuration key of queues for the broker.
_SERVERS = "bootstrap-servers"
StackName = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME", help="Use the servers of the running local stack of this name."),
]


def named_endpoints(name: str) -> Endpoints:
    """Return the addresses of a stack. Raises `InvalidInput` if it does not run."""
    if (endpoints := NamedStack(name).endpoints()) is None:
        raise InvalidInput(
            f"the stack {name!r} does not run: start it with 'thresher stack up --name {name}'{_others()}"
        )
    return endpoints


def stack_hint() -> str:
    """Return the words on what to do if no server is named."""
    return f"name a local stack with --stack, or start one with 'thresher stack up'{_others()}"


def with_stack(flags: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Return the flags of a form, with the servers of the named stack added as flags. Raises `InvalidInput`."""
    kafka = flags.get("kafka") or {}
    if name is None:
        return dict(flags)
    database, broker = flags.get("data_source"), kafka.get("bootstrap.servers")
    # Values of the environment are among the flags too: the stack overrides them.
    if not (_is_of(database, "THRESHER_DS", "THRESHER_DATA_SOURCE") and _is_of(broker, "THRESHER_BOOTSTRAP")):
        raise InvalidInput("--stack names the database and the broker: leave --data-source and --bootstrap out")
    endpoints = named_endpoints(name)
    return {
        **flags,
        "data_source": endpoints.dsn,
        "kafka": {**kafka, "bootstrap.servers": endpoints.bootstrap},
    }


def with_broker(flags: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Return the flags of the queues' form, with the named stack's broker added as a flag. Raises `InvalidInput`."""
    if name is None:
        return dict(flags)
    if not _is_of(flags.get(_SERVERS), "THRESHER_BOOTSTRAP_SERVERS"):
        raise InvalidInput("--stack names the broker: leave --bootstrap-servers out")
    return {**flags, _SERVERS: named_endpoints(name).bootstrap}


def known_stacks() -> str:
    """Return a sentence that lists the existing stacks."""
    names = all_stacks()
    return f"there are: {', '.join(names)}" if names else "there is none: start one with 'thresher stack up'"


def _is_of(value: str | None, *variables: str) -> bool:
    """Whether a value is absent, or equals one of these environment variables."""
    return value is None or value in {os.environ.get(variable) for variable in variables}


def export_lines(endpoints: Endpoints) -> list[str]:
    """Return export lines for a shell that name the servers for every command and for the README's programs."""
    values = {"THRESHER_DS": endpoints.dsn, "THRESHER_BOOTSTRAP": endpoints.bootstrap}
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()]


def _others() -> str:
    running = running_stacks()
    return f" (running: {', '.join(running)})" if running else ""
