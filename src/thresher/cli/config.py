"""`thresher config`: what a relay, a tail or a capture would be told, without starting one."""

import enum
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, emit_json, emit_text, note

if TYPE_CHECKING:
    from thresher.config.report import Problem
    from thresher.harvest.configuration import Configuration

app = Commands(no_args_is_help=True, help="Check or print a configuration; nothing is started.")

File = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="YAML file, in our own form or in goharvest's."),
]


class Pipeline(enum.StrEnum):
    """Whose configuration it is."""

    RELAY = "relay"
    TAIL = "tail"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A configuration that can be read: what it is of, in a line and by names, and the functions that it needs."""

    line: str
    facts: Mapping[str, Any]
    # By key: a path and the number of its arguments.
    functions: tuple[tuple[str, str, int], ...]
    master: str | None


@app.command()
def check(
    config: File = None,
    pipeline: Annotated[Pipeline, typer.Option("--pipeline", help="Whose file it is.")] = Pipeline.RELAY,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a configuration, all of it at once; exit code 2 if anything is.

    The environment counts, as for 'thresher run'. Transforms, handlers and decoders are imported, as they are there:
    from the current directory and Python's path. No server is asked.
    """
    # Only here: the other commands work without the relay's packages.
    from thresher.config.problem import ConfigurationInvalid  # noqa: PLC0415

    # As 'thresher run' finds it, and its workers too.
    sys.path.insert(0, str(Path.cwd()))
    remarks: list[str] = []
    try:
        checked = _READERS[pipeline](config, remarks)
        _require_usable(checked, remarks)
    except ConfigurationInvalid as invalid:
        _tell(remarks, as_json=as_json)
        if not as_json:
            raise
        problems = list(invalid.problems) or [("", str(invalid))]
        found = [{"key": key or None, "why": why} for key, why in problems]
        emit_json({"works": False, "pipeline": pipeline.value, "problems": found, "remarks": remarks})
        raise typer.Exit(invalid.exit_code) from None
    _tell(remarks, as_json=as_json)
    if as_json:
        functions = [path for _, path, _ in checked.functions]
        facts = {"pipeline": pipeline.value, **checked.facts, "functions": functions}
        emit_json({"works": True, **facts, "problems": [], "remarks": remarks})
    else:
        emit_text(f"it can work: {checked.line}")


@app.command("print")
def show(config: File = None, as_json: AsJson = False) -> None:
    """Print the whole configuration of a relay in our own form, with every default and without its secrets."""
    # Only here: the other commands work without the relay's packages.
    import yaml  # noqa: PLC0415

    shown = dict(_load(config, note).shown)
    if as_json:
        emit_json(shown)
    else:
        emit_text(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120).rstrip())


def _load(config: Path | None, warn: Any) -> "Configuration":
    from thresher.harvest.configuration import load  # noqa: PLC0415

    return load(config, {}, os.environ, warn=warn)


def _tell(remarks: list[str], *, as_json: bool) -> None:
    for remark in [] if as_json else remarks:
        note(remark)


def _relay(config: Path | None, remarks: list[str]) -> Checked:
    loaded = _load(config, remarks.append)
    settings, election = loaded.settings, loaded.election.kind
    return Checked(
        line=f"relay {settings.name} of {settings.outbox}, {settings.delivery}, shards {settings.shards}, "
        f"election {election}",
        facts={
            "name": settings.name, "outbox": str(settings.outbox), "delivery": settings.delivery.value,
            "shards": settings.shards, "election": election.value,
        },
        functions=tuple(("transform", path, 1) for path in settings.transform),
        master=loaded.spark.master,
    )  # fmt: skip


def _tail(config: Path | None, remarks: list[str]) -> Checked:
    from thresher.tail.configuration import load_tail_config  # noqa: PLC0415

    loaded = load_tail_config(config, {}, os.environ, warn=remarks.append)
    settings, election = loaded.settings, loaded.form.election
    return Checked(
        line=f"tail {settings.name} of {settings.outbox}, slot {settings.slot_name}, election {election}",
        facts={
            "name": settings.name, "outbox": str(settings.outbox), "slot": settings.slot_name,
            "election": election.value,
        },
        functions=tuple(("transform", path, 1) for path in settings.transforms),
        master=loaded.form.spark_master,
    )  # fmt: skip


def _capture(config: Path | None, remarks: list[str]) -> Checked:
    from thresher.capture.configuration import load_capture_config  # noqa: PLC0415

    loaded = load_capture_config(config, {}, os.environ, warn=remarks.append)
    settings, election = loaded.settings, loaded.form.election
    topics = [mapping.topic for mapping in settings.mappings]
    named = [
        (f"topics.{mapping.topic}.{key}", path, arguments)
        for mapping in settings.mappings
        for key, path, arguments in (("handler", mapping.handler, 2), ("decoder", mapping.decoder, 1))
    ]
    return Checked(
        line=f"capture {settings.name} of {', '.join(topics)}, shards {settings.shards}, election {election}",
        facts={"name": settings.name, "topics": topics, "shards": settings.shards, "election": election.value},
        functions=tuple((key, path, arguments) for key, path, arguments in named if path is not None),
        master=loaded.form.spark_master,
    )


_READERS = {Pipeline.RELAY: _relay, Pipeline.TAIL: _tail, Pipeline.CAPTURE: _capture}


def _require_usable(checked: Checked, remarks: list[str]) -> None:
    from thresher.config.problem import ConfigurationInvalid  # noqa: PLC0415
    from thresher.config.report import as_text  # noqa: PLC0415

    if problems := list(_unusable(checked, remarks)):
        raise ConfigurationInvalid(as_text(problems), problems)


def _unusable(checked: Checked, remarks: list[str]) -> "Iterator[Problem]":
    """Import the functions, and find those that cannot be; where they run elsewhere, only a remark is made."""
    from thresher.spark.problem import StepUnusable  # noqa: PLC0415
    from thresher.spark.session.settings import is_local  # noqa: PLC0415
    from thresher.spark.worker.chain import resolve  # noqa: PLC0415

    if checked.functions and checked.master is not None and not is_local(checked.master):
        paths = ", ".join(path for _, path, _ in checked.functions)
        remarks.append(f"{paths}: not imported here, because executors of {checked.master} are to run it")
        return
    for key, path, arguments in checked.functions:
        try:
            resolve(path, arguments=arguments)
        except StepUnusable as error:
            yield key, str(error)
