"""`thresher config`: checks the configuration of a pipeline or of queues, or prints a relay's; it starts nothing."""

import contextlib
import enum
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, emit_json, emit_line, emit_text, note
from thresher.core.secrets import SecretText

if TYPE_CHECKING:
    from thresher.config.form import Rule
    from thresher.config.report import Problem
    from thresher.harvest.configuration import Configuration

app = Commands(no_args_is_help=True, help="Check or print a configuration; nothing is started.")

File = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="YAML file, in our own format or in goharvest's."),
]


class Pipeline(enum.StrEnum):
    """What a configuration is for."""

    RELAY = "relay"
    TAIL = "tail"
    CAPTURE = "capture"
    # The clients and the tracker of queues, which share a file.
    QUEUE = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A valid configuration: a line for people, facts for scripts, and the functions that it names."""

    line: str
    facts: Mapping[str, Any]
    functions: tuple[str, ...]


# A key, the import path of a function, and the number of the function's arguments.
Function = tuple[str, str, int]


@app.command()
def check(
    config: File = None,
    pipeline: Annotated[
        Pipeline | None,
        typer.Option("--pipeline", help="What the file is for; by default, its keys decide."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a configuration, and report every problem at once; exit code 2 if there is one.

    Environment variables count, as for 'thresher run'. Transforms, handlers and decoders are imported as
    'thresher run' does: from Python's path, then from the directory of the file. No server is contacted.
    """
    # Imported here: the other commands work without the relay's packages.
    from thresher.config.problem import ConfigurationInvalid  # noqa: PLC0415

    remarks: list[str] = []
    chosen = pipeline or Pipeline.RELAY
    try:
        chosen = pipeline or _pipeline_of(config, remarks)
        checked = _READERS[chosen](config, remarks)
    except ConfigurationInvalid as invalid:
        _tell(remarks, as_json=as_json)
        if not as_json:
            raise
        problems = list(invalid.problems) or [("", str(invalid))]
        found = [{"key": key or None, "why": why} for key, why in problems]
        emit_json({"works": False, "pipeline": chosen.value, "problems": found, "remarks": remarks})
        raise typer.Exit(invalid.exit_code) from None
    _tell(remarks, as_json=as_json)
    if as_json:
        facts = {"pipeline": chosen.value, **checked.facts, "functions": list(checked.functions)}
        emit_json({"works": True, **facts, "problems": [], "remarks": remarks})
    else:
        emit_line(f"the configuration can work: {checked.line}")


@app.command("print")
def show(config: File = None, as_json: AsJson = False) -> None:
    """Print the whole configuration of a relay in our own format, with every default and without secrets."""
    # Imported here: the other commands work without the relay's packages.
    import yaml  # noqa: PLC0415

    shown = dict(_load(config, note).shown)
    if as_json:
        emit_json(shown)
    else:
        emit_text(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120).rstrip())


def _load(config: Path | None, warn: Any, *rules: "Rule") -> "Configuration":
    from thresher.harvest.configuration import load  # noqa: PLC0415

    return load(config, {}, os.environ, warn=warn, rules=rules)


def _tell(remarks: list[str], *, as_json: bool) -> None:
    for remark in [] if as_json else remarks:
        note(remark)


def _relay(config: Path | None, remarks: list[str]) -> Checked:
    loaded = _load(config, remarks.append, _imported(_transforms, config, remarks))
    settings, election = loaded.settings, loaded.election.kind
    return Checked(
        line=f"relay {settings.name} of {settings.outbox}, {settings.delivery}, shards {settings.shards}, "
        f"election {election}{_places(settings.data_source, settings.kafka)}",
        facts={
            "name": settings.name, "outbox": str(settings.outbox), "delivery": settings.delivery.value,
            "shards": settings.shards, "election": election.value,
        },
        functions=settings.transform,
    )  # fmt: skip


def _tail(config: Path | None, remarks: list[str]) -> Checked:
    from thresher.tail.configuration import load_tail_config  # noqa: PLC0415

    loaded = load_tail_config(
        config, {}, os.environ, warn=remarks.append, rules=[_imported(_transforms, config, remarks)]
    )
    settings, election = loaded.settings, loaded.form.election
    return Checked(
        line=f"tail {settings.name} of {settings.outbox}, slot {settings.slot_name}, election {election}"
        f"{_places(settings.dsn, settings.kafka)}",
        facts={
            "name": settings.name, "outbox": str(settings.outbox), "slot": settings.slot_name,
            "election": election.value,
        },
        functions=settings.transforms,
    )  # fmt: skip


def _capture(config: Path | None, remarks: list[str]) -> Checked:
    from thresher.capture.configuration import load_capture_config  # noqa: PLC0415

    loaded = load_capture_config(
        config, {}, os.environ, warn=remarks.append, rules=[_imported(_handlers_and_decoders, config, remarks)]
    )
    settings, election = loaded.settings, loaded.form.election
    topics = [mapping.topic for mapping in settings.mappings]
    return Checked(
        line=f"capture {settings.name} of {', '.join(topics)}, shards {settings.shards}, election {election}"
        f"{_places(settings.dsn, settings.kafka)}",
        facts={"name": settings.name, "topics": topics, "shards": settings.shards, "election": election.value},
        functions=settings.functions,
    )


def _queue(config: Path | None, remarks: list[str]) -> Checked:
    from thresher.config.kafka_properties import brokers_of  # noqa: PLC0415
    from thresher.tracker.configuration import load_tracker_config  # noqa: PLC0415

    # It has every key of a client, too.
    form = load_tracker_config(config, {}, os.environ, warn=remarks.append).form
    return Checked(
        line=f"queues of {form.message_topic}, markers in {form.marker_topic}, tracker's shards {form.shards}, "
        f"election {form.election}, brokers {', '.join(sorted(brokers_of(form.bootstrap_servers)))}",
        facts={
            "message_topic": form.message_topic, "marker_topic": form.marker_topic, "shards": form.shards,
            "election": form.election.value,
        },
        functions=(),
    )  # fmt: skip


def _places(dsn: SecretText, kafka: Mapping[str, Any]) -> str:
    from thresher.config.kafka_properties import brokers_of  # noqa: PLC0415
    from thresher.db.postgres.dsn import shown_databases  # noqa: PLC0415

    return f", database {shown_databases(dsn)}, brokers {', '.join(sorted(brokers_of(kafka)))}"


_READERS = {Pipeline.RELAY: _relay, Pipeline.TAIL: _tail, Pipeline.CAPTURE: _capture, Pipeline.QUEUE: _queue}


def _imported(
    functions: "Callable[[Mapping[str, Any]], list[Function]]", config: Path | None, remarks: list[str]
) -> "Rule":
    """Return the rule that every well-formed function path can be imported, even if other keys have problems."""
    from thresher.config.form import Rule  # noqa: PLC0415

    return Rule(
        frozenset({"spark_master"}),
        lambda form, given: _unusable(functions(given), config, form.spark_master, remarks),
    )


def _transforms(given: Mapping[str, Any]) -> "list[Function]":
    from thresher.config.function_paths import function_paths_in  # noqa: PLC0415

    return [("transform", path, 1) for path in function_paths_in(given.get("transform", ()))]


def _handlers_and_decoders(given: Mapping[str, Any]) -> "list[Function]":
    from thresher.config.function_paths import is_function_path  # noqa: PLC0415

    topics = given.get("topics")
    return [
        (f"topics.{topic}.{key}", keys[key], arguments)
        for topic, keys in (topics.items() if isinstance(topics, Mapping) else ())
        for key, arguments in (("handler", 2), ("decoder", 1))
        if isinstance(keys, Mapping) and is_function_path(keys.get(key))
    ]


def _unusable(
    functions: "list[Function]", config: Path | None, master: str | None, remarks: list[str]
) -> "Iterator[Problem]":
    """Import the functions, and yield a problem for each failure. If executors elsewhere run them, only remark it."""
    from thresher.config.function_paths import search_beside  # noqa: PLC0415
    from thresher.spark.problem import StepUnusable  # noqa: PLC0415
    from thresher.spark.session.settings import is_local  # noqa: PLC0415
    from thresher.spark.worker.chain import resolve  # noqa: PLC0415

    if functions and master is not None and not is_local(master):
        paths = ", ".join(path for _, path, _ in functions)
        remarks.append(f"{paths}: not imported here, because executors of {master} will run it")
        return
    remarks += search_beside(config, [path for _, path, _ in functions])
    for key, path, arguments in functions:
        try:
            # An imported module may print, and standard output is for the report.
            with contextlib.redirect_stdout(sys.stderr):
                resolve(path, arguments=arguments)
        except StepUnusable as error:
            yield key, str(error)


def _pipeline_of(config: Path | None, remarks: list[str]) -> Pipeline:
    """Return what a file is for, by the keys that only one kind of file has. Default: the relay."""
    from thresher.capture.configuration import CaptureForm  # noqa: PLC0415
    from thresher.config.document import read  # noqa: PLC0415
    from thresher.config.setting import keys_of  # noqa: PLC0415
    from thresher.harvest.form import RelayForm  # noqa: PLC0415
    from thresher.queue.configuration import QueueConfig  # noqa: PLC0415
    from thresher.tail.configuration import TailForm  # noqa: PLC0415

    found = {} if config is None else read(config)
    keys = {
        Pipeline.RELAY: keys_of(RelayForm),
        Pipeline.TAIL: keys_of(TailForm),
        Pipeline.CAPTURE: keys_of(CaptureForm),
        Pipeline.QUEUE: keys_of(QueueConfig),
    }
    having = {key: [pipeline for pipeline, known in keys.items() if key in known] for key in found}
    owners = {pipelines[0] for pipelines in having.values() if len(pipelines) == 1}
    if len(owners) != 1 or owners == {Pipeline.RELAY}:
        return Pipeline.RELAY
    (owner,) = owners
    own = ", ".join(key for key, pipelines in having.items() if pipelines == [owner])
    remarks.append(f"checked as the file of a {owner}, because of its keys ({own}): --pipeline overrides this")
    return owner
