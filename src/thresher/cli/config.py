"""`thresher config`: what a relay would be told, without starting one."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, emit_json, emit_text, note

if TYPE_CHECKING:
    from thresher.harvest.configuration import Configuration

app = Commands(no_args_is_help=True, help="Check or print a relay's configuration; nothing is started.")

File = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="YAML file, in our own form or in goharvest's."),
]


@app.command()
def check(config: File = None) -> None:
    """Say what is wrong with a configuration, all of it at once; exit code 2 if anything is.

    The environment counts, as for 'thresher run'. No server is asked.
    """
    loaded = _load(config)
    settings = loaded.settings
    emit_text(
        f"it can work: relay {settings.name} of {settings.outbox}, {settings.delivery}, "
        f"shards {settings.shards}, election {loaded.election.kind}"
    )


@app.command("print")
def show(config: File = None, as_json: AsJson = False) -> None:
    """Print the whole configuration in our own form, with every default and without its secrets."""
    # Only here: the other commands work without the relay's packages.
    import yaml  # noqa: PLC0415

    shown = dict(_load(config).shown)
    if as_json:
        emit_json(shown)
    else:
        emit_text(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120).rstrip())


def _load(config: Path | None) -> "Configuration":
    from thresher.harvest.configuration import load  # noqa: PLC0415

    return load(config, {}, os.environ, warn=note)
