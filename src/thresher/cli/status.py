"""`thresher status`: how a running relay, tracker or capture stands, asked over loopback HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Collection
from typing import Annotated, Any

import typer

from thresher.cli.output import AsJson, emit_json, note, sentence, table
from thresher.core.errors import InvalidInput, ThresherError
from thresher.core.topic_name import is_topic


class RelayUnreachable(ThresherError):  # noqa: N818
    """Nobody answers there."""

    retryable = True


def status(
    at: Annotated[
        str, typer.Option("--at", envvar="THRESHER_STATUS", help="Where the process shows itself, HOST:PORT.")
    ] = "127.0.0.1:8640",
    as_json: AsJson = False,
) -> None:
    """Show how a running relay, tracker or capture stands: what it has done, and what waits, shard by shard."""
    picture = ask(at)
    if as_json:
        emit_json(picture)
    elif "marker_topic" in picture:
        _show_tracker(picture)
    elif "captured" in picture:
        _show_capture(picture)
    else:
        _show_relay(picture)


def _show_relay(picture: dict[str, Any]) -> None:
    pending = picture["pending"]
    about = "" if picture["pending_exact"] in {True, None} else "about "
    oldest = "unknown" if pending is None else "none"
    if picture["oldest_pending_seconds"] is not None:
        oldest = f"{picture['oldest_pending_seconds']:.1f} s"
    dead = "unknown" if picture["dead_rows"] is None else f"{picture['dead_rows']}, blocking {picture['blocking_rows']}"
    sentence(f"relay {picture['name']} of {picture['outbox']}: {picture['state']}")
    sentence(
        f"pending {'unknown' if pending is None else f'{about}{pending:,}'}, oldest {oldest}, "
        f"relayed {picture['relayed']:,} at {picture['rows_per_s']:,.0f} rows/s, dead {dead}"
    )
    table(
        "Shards",
        ["shard", "state", "attempt", "process", "relayed", "rows/s", "pending"],
        [
            [
                str(shard["shard"]),
                shard["state"],
                str(shard["attempt"]),
                f"{shard['host']}:{shard['pid']}" if shard["pid"] else "",
                f"{shard['relayed']:,}",
                f"{shard['rows_per_s']:,.0f}",
                "" if shard["pending"] is None else f"{about}{shard['pending']:,}",
            ]
            for shard in picture["shards"]
        ],
        importance=("shard", "state", "relayed", "rows/s", "pending"),
    )
    _show_errors(picture)
    for what, why in picture["alarms"].items():
        note(f"alarm: rows of topic {what} wait: {why}" if is_topic(what) else f"alarm: {what}: {why}")
    if picture["database_trouble"]:
        note(f"alarm: {picture['database_trouble']}")
    _show_trouble(picture, aside={"database"})


def _show_tracker(picture: dict[str, Any]) -> None:
    sentence(f"tracker {picture['name']} of {picture['marker_topic']}: {picture['state']}")
    sentence(
        f"in progress {picture['in_progress']:,.0f}, of them delayed {picture['delayed']:,.0f}, due "
        f"{picture['due']:,.0f}, oldest {picture['oldest_in_progress_seconds']:.1f} s; "
        f"started {picture['started']:,}, ended {picture['ended']:,}, redelivered {picture['redelivered']:,}, "
        f"dead {picture['dead']:,}; markers not read {picture['marker_lag']:,.0f}"
    )
    table(
        "Shards",
        ["shard", "state", "attempt", "process", "in progress", "redelivered", "markers not read"],
        [
            [
                str(shard["shard"]),
                shard["state"],
                str(shard["attempt"]),
                f"{shard['host']}:{shard['pid']}" if shard["pid"] else "",
                f"{shard['in_progress'] or 0:,.0f}",
                f"{shard['redelivered']:,}",
                f"{shard['marker_lag'] or 0:,.0f}",
            ]
            for shard in picture["shards"]
        ],
        importance=("shard", "state", "in progress", "redelivered", "markers not read"),
    )
    _show_errors(picture)
    _show_trouble(picture)


def _show_capture(picture: dict[str, Any]) -> None:
    sentence(f"capture {picture['name']}: {picture['state']}")
    sentence(
        f"captured {picture['captured']:,} at {picture['rows_per_s']:,.0f} records/s, dead {picture['dead']:,}, "
        f"not read {picture['lag']:,.0f}"
    )
    table(
        "Topics",
        ["topic", "captured", "dead", "not read"],
        [
            [topic, f"{each['captured']:,}", f"{each['dead']:,}", "" if each["lag"] is None else f"{each['lag']:,}"]
            for topic, each in picture["topics"].items()
        ],
    )
    table(
        "Shards",
        ["shard", "state", "attempt", "process", "captured", "dead"],
        [
            [
                str(shard["shard"]),
                shard["state"],
                str(shard["attempt"]),
                f"{shard['host']}:{shard['pid']}" if shard["pid"] else "",
                f"{shard['captured']:,}",
                f"{shard['dead']:,}",
            ]
            for shard in picture["shards"]
        ],
        importance=("shard", "state", "captured", "dead"),
    )
    _show_errors(picture)
    _show_trouble(picture)


def _show_errors(picture: dict[str, Any]) -> None:
    for shard in picture["shards"]:
        if shard["last_error"]:
            sentence(f"the last error of shard {shard['shard']}: {shard['last_error']}")


def _show_trouble(picture: dict[str, Any], aside: Collection[str] = ()) -> None:
    """Show what every process may wait for; servers that are `aside` were told of."""
    if picture["waiting_for"]:
        note(f"it waits to take over: {picture['waiting_for']}")
    for server, state in picture["servers"].items():
        if server not in aside and not state["up"]:
            note(f"alarm: its {server} does not answer: {state['trouble']}")


def ask(at: str) -> dict[str, Any]:
    """Return what the process at HOST:PORT says of itself."""
    host, _, port = at.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"--at {at}: HOST:PORT is needed")
    try:
        # To the process itself, whatever proxy the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{host}:{port}/status", timeout=15) as answer:
            picture: dict[str, Any] = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise RelayUnreachable(f"no relay or tracker answers at {at} ({error}): is one running?") from error
    return picture
