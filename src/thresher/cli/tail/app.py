"""`thresher tail`: its commands."""

import typer

from thresher.cli.tail.slot import app as slot_app

app = typer.Typer(help="Publish what is committed to an outbox, read from the database's log.", no_args_is_help=True)
app.add_typer(slot_app, name="slot")


@app.callback()
def _group() -> None:
    pass
