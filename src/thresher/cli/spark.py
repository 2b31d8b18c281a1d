"""`thresher spark`: prepares Spark clusters for the engine."""

from pathlib import Path
from typing import Annotated

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, emit_json, err, note

app = Commands(help="Prepare a Spark cluster for pipelines.", no_args_is_help=True)


@app.command()
def pack(
    target: Annotated[Path, typer.Argument(help="The archive to write, a .tar.gz.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Pack only this package and what it requires. May be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack this Python environment, without PySpark, for executors that have none of their own.

    Ship it with `--archives FILE.tar.gz#environment` and PYSPARK_PYTHON=./environment/bin/python, or the same in
    SparkOptions. The executors' machines need the same Python at the same path.
    """
    # Imported here: the other commands work without it.
    from thresher.spark.session.environment import pack as write  # noqa: PLC0415

    with err.status(f"packing {target}"):
        packages = write(target, only=only or ())
    size = target.stat().st_size
    if as_json:
        emit_json({"archive": str(target), "packages": packages, "bytes": size})
    else:
        note(f"{target}: {packages} packages, {size / 1e6:.0f} MB")
