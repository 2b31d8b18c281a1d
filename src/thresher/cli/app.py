"""The command itself: its parts, and how errors become one line and an exit code.

Exit codes: 0 done, 1 it did not work, 2 what was asked for cannot work, 3 superseded by a newer relay, 4 somebody
has to act before it can work, 130 interrupted.
"""

import sys
from typing import Annotated

import psycopg
import typer

from thresher import __version__
from thresher.cli import adopt, config, dead, pump, queue, run, schema, spark, stack, status, verify
from thresher.cli.form_command import add_form_command
from thresher.cli.output import complain, emit_text
from thresher.core.errors import ThresherError

app = typer.Typer(
    name="thresher",
    help="Moves messages between a service's database and Kafka without losing, inventing or reordering one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(schema.app, name="schema")
app.add_typer(stack.app, name="stack")
app.add_typer(spark.app, name="spark")
app.add_typer(dead.app, name="dead")
app.add_typer(config.app, name="config")
app.add_typer(queue.app, name="queue")
add_form_command(app, "run", run.run, run.form)
app.command()(status.status)
app.command()(adopt.adopt)
app.command()(pump.pump)
app.command()(verify.verify)


@app.command()
def demo(
    records: Annotated[int, typer.Option(help="Records to write.", min=1000, max=1_000_000)] = 20_000,
) -> None:
    """Bring up Postgres and Kafka, write to an outbox, relay it on Spark, kill the relay on the way, and judge.

    Exit code 1 if anything was lost, invented, repeated or reordered, or if too little happened to tell.
    """
    # Only here: the other commands work without the stack's packages.
    from thresher.cli.demo import show  # noqa: PLC0415

    raise typer.Exit(0 if show(records) else 1)


def _version(asked: bool) -> None:
    if asked:
        emit_text(f"thresher {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def main() -> None:
    """Run the command: one line and an exit code for what an operator can mend, a traceback for our own bugs."""
    try:
        app(prog_name="thresher")
    except ThresherError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except psycopg.Error as error:
        complain(f"the database refused: {error.diag.message_primary or str(error).strip()}")
        sys.exit(1)
    except (OSError, UnicodeError) as error:
        complain(str(error))
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("thresher"):
            raise
        complain(
            f"{error.name} is not installed: pip install 'thresher[relay]' for the relay and its commands, "
            "'thresher[queue]' for queues, 'thresher[stack]' for local servers"
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
