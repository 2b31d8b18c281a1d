"""`thresher capture schema`: prints, creates or checks the tables of a capture."""

from typing import Annotated

import typer

from thresher.cli.advising import advised, plain_advice, show_advice
from thresher.cli.capture.loading import ConfigFile, prepared, settings_of
from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, complain, emit_json, emit_text, result
from thresher.cli.stack.choosing import StackName

app = Commands(help="Print, create or check the tables of a capture.", no_args_is_help=True)


@app.command("print")
def print_ddl(
    config: ConfigFile = None,
    stack: StackName = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="Grant this role the rights of the capture.")
    ] = None,
    waiting_role: Annotated[
        str | None,
        typer.Option("--waiting-role", metavar="ROLE", help="Grant this role the right to wait for captured records."),
    ] = None,
) -> None:
    """Print the DDL of capture's own tables, and of the guard columns of yours, for your migrations."""
    from thresher.capture.store.grants import capture_grants, waiting_grants  # noqa: PLC0415
    from thresher.capture.store.schema import capture_ddl  # noqa: PLC0415
    from thresher.election.lease import lease_ddl, lease_grants  # noqa: PLC0415

    settings = settings_of(config, stack)
    tables, name = settings.tables, settings.name
    emit_text(capture_ddl(tables, settings.mappings))
    if role is not None:
        emit_text(lease_ddl(tables.schema))
        emit_text("\n".join(capture_grants(tables, settings.mappings, role, capture=name)))
        emit_text("\n".join(lease_grants(tables.schema, role, names=[settings.lease])))
    if waiting_role is not None:
        emit_text("\n".join(waiting_grants(tables, waiting_role, capture=name)))


@app.command()
def create(config: ConfigFile = None, stack: StackName = None) -> None:
    """Create capture's own tables, and add the guard columns to yours, where they are missing."""
    from thresher.capture.store.schema import create_schema, schema_problems  # noqa: PLC0415

    settings = settings_of(config, stack)
    with prepared(settings) as (connection, settings):
        create_schema(connection, settings.tables, settings.mappings)
        problems = schema_problems(connection, settings.tables, settings.mappings)
    if problems:
        found = "\n".join(problems)
        complain(f"capture's own tables exist, but the database is not ready for this capture:\n{found}")
        raise typer.Exit(1)
    result("the tables exist")


@app.command()
def check(config: ConfigFile = None, stack: StackName = None, as_json: AsJson = False) -> None:
    """Check the database of a capture, and say how to repair each problem; exit code 1 if there is one.

    The captured topics are looked at too: advice on limits, compression, retention and replicas changes no exit code.
    """
    from thresher.capture.start_offsets import captured_uses  # noqa: PLC0415
    from thresher.capture.store.schema import schema_problems  # noqa: PLC0415

    settings = settings_of(config, stack)
    with prepared(settings) as (connection, settings):
        problems = schema_problems(connection, settings.tables, settings.mappings)
    advice = advised(settings.kafka, lambda: captured_uses(settings))
    if as_json:
        emit_json({"usable": not problems, "findings": list(problems), **plain_advice(advice)})
    else:
        for problem in problems:
            result(problem)
        if problems:
            complain("the database is not ready for this capture")
        else:
            result("the database is ready for this capture")
        show_advice(advice)
    raise typer.Exit(1 if problems else 0)
