"""`thresher tail`: its commands."""

from thresher.cli.form_command import add_form_command
from thresher.cli.layout.help_page import Commands
from thresher.cli.tail import run
from thresher.cli.tail.slot import app as slot_app

app = Commands(help="Publish an outbox to Kafka from Postgres' WAL (logical replication).", no_args_is_help=True)
app.add_typer(slot_app, name="slot")
add_form_command(app, "run", run.run, run.form)
add_form_command(app, "join", run.join, run.form)
add_form_command(app, "leave", run.leave, run.form)


@app.callback()
def _group() -> None:
    pass
