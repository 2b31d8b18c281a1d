"""The `thresher` command: its subcommands, and how errors become one line and an exit code.

Exit codes: 0 success, 1 failure, 2 invalid options or configuration, 3 superseded by a newer relay, 4 a person has to
act first, 130 interrupted.
"""

import enum
import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher import __version__
from thresher.cli import config, run, spark, status
from thresher.cli.form_command import add_form_command
from thresher.cli.layout.help_page import Commands
from thresher.cli.lazy_command import add_lazy_command, only_command
from thresher.cli.output import complain, emit_text, note
from thresher.cli.queue.app import app as queue_app
from thresher.cli.stack.app import app as stack_app
from thresher.config.known_variables import misspelt
from thresher.core.errors import ThresherError
from thresher.core.installing import how_to_install
from thresher.core.interruptible import interruptible


class DemoKind(enum.StrEnum):
    """The pipeline that the demo shows."""

    RELAY = "relay"
    QUEUE = "queue"


app = Commands(
    name="thresher",
    help="Moves messages between a service's database and Kafka without losing, inventing or reordering one.",
    no_args_is_help=True,
)
# Commands whose modules import the database driver, each with its line in the list of commands.
LAZY = {
    "adopt": "Let a relay or tail continue with this database, progress topic and slot.",
    "pump": "Fill the outbox with records. Ctrl-C stops after the current transactions.",
    "verify": "Check that the records of 'thresher pump' arrived: none lost, invented, repeated, out of order or "
    "altered.",
    "schema": "Print, create or check the outbox table.",
    "dead": "List rows that could not be sent, put them back into the outbox, or drop them.",
    "topics": "List the topics of relays that share an outbox by topic locks, or split a topic.",
    "inbox": "Print, create, check or trim the inbox table, or move a group over a batch.",
    "tail": "Publish an outbox to Kafka from Postgres' WAL (logical replication).",
    "capture": "Write the records of Kafka topics to database tables (event state capture).",
    "archive": "Move old rows that were sent and stamped to an archive table or to Parquet files.",
}
# Commands that read the environment by a form. The form reports unknown variables.
_TOLD_BY_THEIR_FORM = frozenset({"run", "config", "tail", "capture", "queue"})


def load(name: str) -> typer.Typer:
    """Import a command's module, and return the command."""
    module = importlib.import_module(f"thresher.cli.{name}")
    return module.app if hasattr(module, "app") else only_command(name, getattr(module, name))


add_form_command(app, "run", run.run, run.form)
app.command()(status.status)
for _name, _help in LAZY.items():
    add_lazy_command(app, _name, _help, partial(load, _name))
app.add_typer(stack_app, name="stack")
app.add_typer(spark.app, name="spark")
app.add_typer(config.app, name="config")
app.add_typer(queue_app, name="queue")


@app.command()
def demo(
    what: Annotated[
        DemoKind, typer.Argument(help="relay: an outbox to Kafka. queue: a queue with consumers and its tracker.")
    ] = DemoKind.RELAY,
    records: Annotated[
        int | None,
        typer.Option(help="Number of records, or of messages of the queue: at most 20,000.", min=1000, max=1_000_000),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="HTML file for the plots of the relay's rate, pending rows and latency.")
    ] = Path("thresher-demo.html"),
) -> None:
    """Show on local servers that a relay, or a queue, survives 'kill -9' without losing a message.

    relay: fills an outbox, relays it on Spark, kills the relay meanwhile, and compares the records with the rows.
    queue: kills a consumer and the tracker. Exit code 1 if a message was lost, or for the relay also invented, repeated
    or reordered, or if the run proves nothing, for example because no process was killed.
    """
    # Imported here: the other commands work without the stack's packages.
    if what is DemoKind.QUEUE:
        from thresher.cli.demo.queue import show as show_queue  # noqa: PLC0415

        raise typer.Exit(0 if show_queue(min(records or 10_000, 20_000)) else 1)
    from thresher.cli.demo.relay import show  # noqa: PLC0415

    raise typer.Exit(0 if show(records or 20_000, report) else 1)


def _version(asked: bool) -> None:
    if asked:
        emit_text(f"thresher {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    if context.invoked_subcommand not in _TOLD_BY_THEIR_FORM:
        for variable in sorted(os.environ):
            if remark := misspelt(variable):
                note(remark)


def main() -> None:
    """Run the command: one line and an exit code for problems that an operator can solve, a traceback for our bugs."""
    try:
        with interruptible():
            app(prog_name="thresher")
    except ThresherError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except _errors_of_database() as error:
        from thresher.db.postgres.refusal import is_refused, remedy  # noqa: PLC0415 - only where the driver is there

        text = error.diag.message_primary or str(error).strip()
        complain(f"the database refused: {text}{remedy(error.sqlstate, text)}")
        sys.exit(4 if is_refused(error.sqlstate, text) else 1)
    except (OSError, UnicodeError) as error:
        complain(str(error))
        sys.exit(1)
    except ImportError as error:
        if (error.name or "").startswith("thresher"):
            raise
        # The error of a package that lacks a system library names no module.
        what = f"{error.name} is not installed" if error.name else str(error).splitlines()[0]
        complain(
            f"{what}: {how_to_install('relay')}; the extra is 'relay' for the relay and its commands, 'queue' for "
            "queues, 'tracker' for their tracker, 'stack' for local servers"
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _errors_of_database() -> Any:
    """Return the error class of the database driver; nothing if no command has imported the driver."""
    driver = sys.modules.get("psycopg")
    return () if driver is None else driver.Error
