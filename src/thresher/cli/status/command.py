"""`thresher status`: finds a running process, and shows its state.

1. With `--at`, the process at that address.
2. With a file, the process on this machine that was started with the file; if none is listed, the address in the file.
3. With neither, the only process on this machine, or a list of several; if none is listed, the default address.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli.output import AsJson, emit_json, note, table
from thresher.cli.status.asking import RelayUnreachable, ask
from thresher.cli.status.picture import show
from thresher.cli.status.running import Running, running
from thresher.core.errors import InvalidInput

_USUAL = "127.0.0.1:8640"
_AT, _CONFIG = "THRESHER_STATUS", "THRESHER_CONFIG"


def status(
    at: Annotated[
        str | None, typer.Option("--at", envvar=_AT, metavar="HOST:PORT", help="Address of the process' status pages.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", envvar=_CONFIG, metavar="FILE", help="The file that the process was started with."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a running relay, tail, tracker or capture: work done and work pending, for each shard.

    Without an option, if several processes run on this machine, they are listed.
    """
    config = chosen_file(at, config, os.environ)
    found = _found(config) if at is None or config is not None else []
    if len(found) > 1:
        _list(found, as_json, of_file=config is not None)
        return
    if found:
        at = found[0].at
    elif config is not None:
        at = _address_in(config)
    picture = ask(at or _USUAL)
    if config is not None and not found:
        _require_name(picture, config, at or _USUAL)
    if as_json:
        emit_json(picture)
    else:
        show(picture)


def chosen_file(at: str | None, config: Path | None, environment: Any) -> Path | None:
    """Return the file, if it chooses the process. A flag overrides the environment; two flags are refused."""
    if at is None or config is None:
        return config
    at_flag, config_flag = at != environment.get(_AT), str(config) != environment.get(_CONFIG)
    if at_flag and config_flag:
        raise InvalidInput("--at and --config both name the process: leave one of them out")
    return config if config_flag else None


def _found(config: Path | None) -> list[Running]:
    wanted = None if config is None else str(config.resolve())
    return [each for each in running() if wanted in {None, each.config}]


def _keys_of(config: Path) -> dict[str, Any]:
    # Imported here: without a file, the packages for reading one are not needed.
    from thresher.config.document import read  # noqa: PLC0415

    keys = dict(read(config))
    # A tracker's own keys are a section of the queues' file.
    own = keys.get("redelivery-tracker")
    return {**keys, **(own if isinstance(own, dict) else {})}


def _address_in(config: Path) -> str:
    at = str(_keys_of(config).get("status") or _USUAL)
    if at in {"off", "False"}:
        raise InvalidInput(f"{config}: status is off, so its process has no status pages")
    return at


def _require_name(picture: dict[str, Any], config: Path, at: str) -> None:
    """Raise if another process answered."""
    name = _keys_of(config).get("name")
    if name is not None and str(name) != picture.get("name"):
        raise RelayUnreachable(
            f"the process at {at} is {picture.get('name')!r}, and {config} is for {name!r}: is {name!r} running?"
        )


def _list(found: Sequence[Running], as_json: bool, *, of_file: bool) -> None:
    roles = [_role(each) for each in found]
    if as_json:
        emit_json(
            {
                "running": [
                    {
                        "kind": each.kind,
                        "name": each.name,
                        "at": each.at,
                        "pid": each.pid,
                        "config": each.config,
                        "role": role,
                    }
                    for each, role in zip(found, roles, strict=True)
                ]
            }
        )
        return
    table(
        "Running on this machine",
        ["kind", "name", "role", "at", "process", "file"],
        [
            [each.kind, each.name, role, each.at, str(each.pid), each.config or ""]
            for each, role in zip(found, roles, strict=True)
        ],
        importance=("name", "at", "role", "kind", "process"),
        shortened=("name",),
        rest="--json",
    )
    if not of_file:
        note("for one of them: thresher status --at HOST:PORT, or -c FILE")
        return
    for each, role in zip(found, roles, strict=True):
        if role == "leading":
            note(f"process {each.pid} leads: thresher status --at {each.at} shows it")
    if "leading" not in roles:
        note("none of them leads: thresher status --at HOST:PORT shows what one waits for")


def _role(process: Running) -> str:
    try:
        return str(ask(process.at).get("role"))
    except RelayUnreachable:
        return "silent"
