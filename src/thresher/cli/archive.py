"""`thresher archive`: moves old stamped rows to a table beside the outbox, or to Parquet files."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.archive.archiver import Archiver
from thresher.archive.run import Archived, ArchiveJob
from thresher.archive.target import MOST_SECONDS, TO_TABLE, Opening, Target, target_of
from thresher.cli.options import DataSource, name_database, require_no_flag, resolve_dsn, table_name
from thresher.cli.output import AsJson, counted, emit_json, hide, note, result, working
from thresher.cli.stack.choosing import StackName, with_stack
from thresher.core.errors import InvalidInput
from thresher.core.signals import stopped_by_signals
from thresher.db.outbox_store import Settling

_WEEK_SECONDS = 7 * 86_400.0
_OUTBOX = "outbox"


def archive(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="YAML file of the outbox's relay."),
    ] = None,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: Annotated[
        str | None,
        typer.Option(
            "--outbox", envvar="THRESHER_OUTBOX", help="Name of the outbox table, case-sensitive, without schema."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", envvar="THRESHER_SCHEMA", help="Schema of the table; by default, the search_path decides."
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            help="Least age in seconds since the row was sent; by default the file's, or 7 days.",
            min=0.0,
            max=MOST_SECONDS,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="'table' for <outbox>_archive, or a directory; by default the file's, or the table."),
    ] = None,
    batch_rows: Annotated[
        int, typer.Option(help="Rows to move in one transaction, and to write to one file.", min=1, max=1_000_000)
    ] = 10_000,
    new_directory: Annotated[
        bool, typer.Option("--new-directory", help="Accept that the directory at this path replaces a lost one.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only count the rows that would be moved.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move old rows that were sent and stamped to an archive table or to Parquet files.

    A run first completes the batches that a crash left unfinished. The first SIGINT or SIGTERM stops after the current
    batch. Exit codes: 1 another archiver works on the outbox, or a server or a disk failed: try again; 2 invalid
    options; 4 a person has to act.
    """
    job = _from_file(config, ds, stack) if config is not None else None
    if job is None:
        name = table_name(outbox or _OUTBOX, schema)
        job = ArchiveJob(dsn=resolve_dsn(ds, stack), outbox=name, target=TO_TABLE, older_than_seconds=_WEEK_SECONDS)
    else:
        name = table_name(outbox or job.outbox.table, schema or job.outbox.schema)
        job = replace(job, outbox=name)
    job = replace(
        job,
        batch_rows=batch_rows,
        older_than_seconds=job.older_than_seconds if older_than is None else older_than,
        target=job.target if to is None else target_of(to, base=Path.cwd()),
        opening=Opening.ANEW if new_directory else Opening.MADE,
    )
    if new_directory and job.target is TO_TABLE:
        raise InvalidInput("--new-directory needs a directory: name it with --to")
    name_database(job.dsn)
    if dry_run:
        _tell_count(Archiver(job).count(), job, as_json)
    else:
        _run(job, as_json)


def _run(job: ArchiveJob, as_json: bool) -> None:
    stopped: list[bool] = []
    began = time.monotonic()
    # No total: counting the due rows would scan the whole table.
    with stopped_by_signals(lambda: stopped.append(True)), working("archiving", None) as progress:

        def told(done: Archived) -> None:
            rate = f"{done.rows / max(0.001, time.monotonic() - began):,.0f}"
            progress.update(progress.task_ids[0], completed=done.rows, rate=rate)

        done = Archiver(job, stop=lambda: bool(stopped), told=told).run()
    where = _where(job.target, job)
    if as_json:
        emit_json(
            {
                "rows": done.rows,
                "to": where,
                "files": done.files,
                "removed_by_others": done.gone,
                "changed": done.changed,
                "stopped": bool(stopped),
            }
        )
        return
    files = f", in {counted(len(done.files), 'file', 'files')}" if done.files else ""
    result(f"{counted(done.rows, 'row was', 'rows were')} moved to {where}{files}")
    if stopped:
        note("stopped after the current batch: run it again for the rest")


def _tell_count(rows: int, job: ArchiveJob, as_json: bool) -> None:
    where = _where(job.target, job)
    if as_json:
        emit_json({"rows": rows, "to": where})
    else:
        result(f"{counted(rows, 'row', 'rows')} would be moved to {where}")


def _where(target: Target, job: ArchiveJob) -> str:
    return job.outbox.companion("_archive") if target is TO_TABLE else str(target.path)


def _from_file(path: Path, ds: str | None, stack: str | None) -> ArchiveJob:
    # Imported here: without a file, the relay's packages are not needed.
    from thresher.harvest.configuration import load  # noqa: PLC0415

    if stack is not None:
        require_no_flag(ds)
    ignored: list[Any] = []
    loaded = load(path, with_stack({"data_source": None if stack else ds}, stack), os.environ, warn=ignored.append)
    hide(loaded.secrets.mask)
    settings = loaded.settings
    if settings.settle is not Settling.STAMP:
        raise InvalidInput(f"{path}: settle: rows that are deleted cannot be archived; use 'settle: stamp'")
    return ArchiveJob(
        dsn=settings.data_source,
        outbox=settings.outbox,
        target=target_of(settings.archive_to),
        older_than_seconds=settings.archive_after_seconds or _WEEK_SECONDS,
    )
