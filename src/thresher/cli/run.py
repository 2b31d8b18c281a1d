"""`thresher run`: the relay as a program, from a file, the environment and flags."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli.options import properties
from thresher.cli.output import hide, note, out
from thresher.core.errors import InvalidInput
from thresher.core.secrets import mask_logs
from thresher.devstack.kept import KeptStack
from thresher.observe.logs import configure_logging
from thresher.outbox import Shape


def run(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="YAML file with any of these keys.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(envvar="THRESHER_NAME", help="The relay's identity, shared by all who compete for it."),
    ] = None,
    ds: Annotated[
        str | None,
        typer.Option("--ds", "--data-source", envvar="THRESHER_DS", help="Postgres connection string or URL."),
    ] = None,
    outbox: Annotated[
        str | None, typer.Option(envvar="THRESHER_OUTBOX", help="The outbox table. (default: outbox)")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(envvar="THRESHER_SCHEMA", help="Its schema. (default: search_path)")
    ] = None,
    shape: Annotated[Shape | None, typer.Option(envvar="THRESHER_SHAPE", help="Its shape. (default: thresher)")] = None,
    delivery: Annotated[
        str | None,
        typer.Option(envvar="THRESHER_DELIVERY", help="exactly-once or at-least-once. (default: exactly-once)"),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(envvar="THRESHER_BOOTSTRAP", help="Kafka, as HOST:PORT[,HOST:PORT…].")
    ] = None,
    kafka: Annotated[
        list[str] | None,
        typer.Option(envvar="THRESHER_KAFKA", help="A client property, as property=value; may be repeated."),
    ] = None,
    producer: Annotated[
        list[str] | None,
        typer.Option(envvar="THRESHER_PRODUCER", help="A producer property, as property=value; may be repeated."),
    ] = None,
    shards: Annotated[int | None, typer.Option(envvar="THRESHER_SHARDS", help="Shards, 1 to 64. (default: 2)")] = None,
    settle: Annotated[
        str | None, typer.Option(envvar="THRESHER_SETTLE", help="delete or stamp. (default: delete)")
    ] = None,
    poison: Annotated[
        str | None,
        typer.Option(envvar="THRESHER_POISON", help="dead-letter, block-key or halt. (default: dead-letter)"),
    ] = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(envvar="THRESHER_TRANSFORM", help="package.module:function; repeated, they run in this order."),
    ] = None,
    batch_rows: Annotated[
        int | None, typer.Option(envvar="THRESHER_BATCH_ROWS", help="Rows in a transaction at most. (default: 10000)")
    ] = None,
    batch_bytes: Annotated[
        int | None,
        typer.Option(envvar="THRESHER_BATCH_BYTES", help="Bytes in a transaction at most. (default: 16000000)"),
    ] = None,
    batch_seconds: Annotated[
        float | None,
        typer.Option(
            envvar="THRESHER_BATCH_SECONDS",
            help="What a batch should take at most; smaller ones follow a slow one. (default: 2)",
        ),
    ] = None,
    poll_seconds: Annotated[
        float | None,
        typer.Option(envvar="THRESHER_POLL_SECONDS", help="How often an idle shard looks. (default: 0.001)"),
    ] = None,
    grace_seconds: Annotated[
        float | None,
        typer.Option(envvar="THRESHER_GRACE_SECONDS", help="How long a missing topic is waited for. (default: 60)"),
    ] = None,
    horizon_seconds: Annotated[
        float | None,
        typer.Option(
            envvar="THRESHER_HORIZON_SECONDS", help="How much progress is kept for a restore. (default: 3600)"
        ),
    ] = None,
    in_flight_rows: Annotated[
        int | None,
        typer.Option(envvar="THRESHER_IN_FLIGHT_ROWS", help="At least once: rows sent, not purged. (default: 1000)"),
    ] = None,
    mark_rows: Annotated[
        int | None,
        typer.Option(envvar="THRESHER_MARK_ROWS", help="At least once: rows that a query marks. (default: 1000)"),
    ] = None,
    back_off_seconds: Annotated[
        float | None,
        typer.Option(envvar="THRESHER_BACK_OFF_SECONDS", help="First wait before a shard restarts. (default: 0.2)"),
    ] = None,
    election: Annotated[
        str | None, typer.Option(envvar="THRESHER_ELECTION", help="neli, lease or none. (default: lease)")
    ] = None,
    leader_topic: Annotated[
        str | None, typer.Option(envvar="THRESHER_LEADER_TOPIC", help="neli: its topic. (default: <name>.leader)")
    ] = None,
    leader_group: Annotated[
        str | None, typer.Option(envvar="THRESHER_LEADER_GROUP", help="neli: its group. (default: from the name)")
    ] = None,
    heartbeat_timeout_seconds: Annotated[
        float | None,
        typer.Option(
            envvar="THRESHER_HEARTBEAT_TIMEOUT_SECONDS", help="neli: unheard for so long, a leader goes. (default: 5)"
        ),
    ] = None,
    min_poll_seconds: Annotated[
        float | None,
        typer.Option(envvar="THRESHER_MIN_POLL_SECONDS", help="neli: how often Kafka is asked. (default: 0.1)"),
    ] = None,
    max_poll_seconds: Annotated[
        float | None,
        typer.Option(
            envvar="THRESHER_MAX_POLL_SECONDS", help="neli: how seldom at most. (default: half the heartbeat's)"
        ),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        typer.Option(envvar="THRESHER_LEASE_SECONDS", help="lease: how long one is good for. (default: 1.5)"),
    ] = None,
    metrics_seconds: Annotated[
        float | None,
        typer.Option(envvar="THRESHER_METRICS_SECONDS", help="How often the meter is read. (default: 5)"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(envvar="THRESHER_LOG_FORMAT", help="text or json. (default: text)")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(envvar="THRESHER_LOG_LEVEL", help="debug, info, warning, error or off. (default: info)"),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            envvar="THRESHER_STATUS", help="Where 'thresher status' asks, HOST:PORT or off. (default: 127.0.0.1:8640)"
        ),
    ] = None,
    spark_master: Annotated[
        str | None, typer.Option(envvar="THRESHER_SPARK_MASTER", help="A Spark master. (default: local threads)")
    ] = None,
    spark_python: Annotated[
        str | None, typer.Option(envvar="THRESHER_SPARK_PYTHON", help="The Python of executors elsewhere.")
    ] = None,
    spark_archives: Annotated[
        list[str] | None,
        typer.Option(envvar="THRESHER_SPARK_ARCHIVES", help="What 'thresher spark pack' made, as FILE#directory."),
    ] = None,
    spark_py_files: Annotated[
        list[str] | None, typer.Option(envvar="THRESHER_SPARK_PY_FILES", help="Files with transforms to ship.")
    ] = None,
    spark: Annotated[
        list[str] | None, typer.Option(envvar="THRESHER_SPARK", help="A Spark setting, as key=value; may be repeated.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more: --log-level debug.")] = False,
) -> None:
    """Relay the outbox to Kafka in order per key, exactly or at least once, until SIGINT or SIGTERM.

    Of several that are started with one name, one leads and the others wait for their turn, unless --election is none:
    then the newest leads. The first signal finishes what is open, the second does not wait. Exit codes: 0 stopped as
    asked, 1 it failed and may be started again, 2 the configuration cannot work, 3 superseded by a newer relay of the
    same name (do not restart), 4 somebody has to act: password, permission, missing table, another's progress topic.
    """
    overrides: dict[str, Any] = {
        "name": name, "data_source": ds, "outbox": outbox, "schema": schema, "shape": shape, "shards": shards,
        "settle": settle, "poison": poison, "transform": transform or None, "batch_rows": batch_rows,
        "batch_bytes": batch_bytes, "batch_seconds": batch_seconds, "poll_seconds": poll_seconds,
        "grace_seconds": grace_seconds, "horizon_seconds": horizon_seconds, "status": status,
        "delivery": delivery, "in_flight_rows": in_flight_rows, "mark_rows": mark_rows,
        "back_off_seconds": back_off_seconds, "election": election, "leader_topic": leader_topic,
        "leader_group": leader_group, "heartbeat_timeout_seconds": heartbeat_timeout_seconds,
        "min_poll_seconds": min_poll_seconds, "max_poll_seconds": max_poll_seconds,
        "lease_seconds": lease_seconds,
        "metrics_seconds": metrics_seconds, "log_format": log_format, "log_level": "debug" if verbose else log_level,
        "spark_master": spark_master, "spark_python": spark_python, "spark_archives": spark_archives or None,
        "spark_py_files": spark_py_files or None, "kafka": properties(kafka, "--kafka"),
        "producer": properties(producer, "--producer"), "spark": properties(spark, "--spark"),
    }  # fmt: skip
    if bootstrap is not None:
        overrides["kafka"]["bootstrap.servers"] = bootstrap
    # Only here: the other commands work without the relay's packages.
    from thresher.harvest.configuration import Configuration, load  # noqa: PLC0415
    from thresher.harvest.harvest import Harvest  # noqa: PLC0415
    from thresher.service.pages import StatusPages  # noqa: PLC0415
    from thresher.spark.driver.signals import stopped_by_signals  # noqa: PLC0415

    # A transform in the directory where it was started is found by the workers too.
    sys.path.insert(0, str(Path.cwd()))
    remarks: list[str] = []
    loaded = load(config, overrides, os.environ, warn=remarks.append, otherwise=_local_stack)
    hide(loaded.secrets.mask)
    configure_logging(loaded.log_format, loaded.log_level)
    mask_logs(loaded.secrets)
    for remark in remarks:
        logging.getLogger("thresher").warning(remark)
    harvest = Harvest(
        loaded.settings,
        election=loaded.election,
        spark=loaded.spark,
        policy=loaded.policy,
        metrics_seconds=loaded.metrics_seconds,
    )

    @contextlib.contextmanager
    def shown(loaded: Configuration) -> Iterator[None]:
        if loaded.status is None:
            yield
            return
        board = StatusPages(harvest)
        try:
            with _server(*loaded.status, loaded.status_by_default, board):
                yield
        finally:
            board.close()

    with stopped_by_signals(harvest), shown(loaded):
        harvest.start()
        harvest.wait()
    out.print(f"stopped; {harvest.relayed:,} rows relayed")


def _local_stack() -> dict[str, Any]:
    if (endpoints := KeptStack().endpoints()) is None:
        return {}
    note("using the database and the broker of the local stack")
    return {"data_source": endpoints.dsn, "kafka": {"bootstrap.servers": endpoints.bootstrap}}


def _server(host: str, port: int, by_default: bool, board: Any) -> Any:
    from thresher.observe.server import Server  # noqa: PLC0415

    try:
        server = Server(host, port, board.pages)
    except OSError as error:
        if not by_default:
            raise InvalidInput(f"status: {host}:{port} cannot be listened on: {error}") from error
        server = Server(host, 0, board.pages)
        logging.getLogger("thresher").warning(
            "%s:%d is taken: ask with 'thresher status --at %s:%d'", host, port, host, server.port
        )
    logging.getLogger("thresher").info(
        "status at http://%s:%d/status", host, server.port, extra={"pages": sorted(board.pages), "port": server.port}
    )
    return server
