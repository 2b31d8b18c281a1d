"""Prints the status of a running relay, tail, tracker or capture, for people."""

from collections.abc import Collection
from typing import Any

from thresher.cli.output import sentence, table
from thresher.core.topic_name import is_topic


def show(picture: dict[str, Any]) -> None:
    """Show the status of a process. A standby has no figures: show the leader instead."""
    if picture.get("role") == "standby":
        leader = picture.get("leader")
        sentence(f"{picture['name']} stands by here: {f'{leader} leads' if leader else 'who leads is not known here'}")
        _show_trouble(picture)
    elif "marker_topic" in picture:
        _show_tracker(picture)
    elif "captured" in picture:
        _show_capture(picture)
    elif "slot" in picture:
        _show_tail(picture)
    else:
        _show_relay(picture)


def _state(picture: dict[str, Any]) -> str:
    """Return the state of a process, and whether it is ready; if not, the reason that /readyz gives."""
    return f"{picture['state']}, {'ready' if picture['ready'] else 'not ready: ' + picture['reason']}"


def _show_relay(picture: dict[str, Any]) -> None:
    pending = picture["pending"]
    about = "" if picture["pending_exact"] in {True, None} else "about "
    oldest = "unknown" if pending is None else "none"
    if picture["oldest_pending_seconds"] is not None:
        oldest = f"{picture['oldest_pending_seconds']:.1f} s"
    dead = "unknown" if picture["dead_rows"] is None else f"{picture['dead_rows']}, blocking {picture['blocking_rows']}"
    sentence(f"relay {picture['name']} of {picture['outbox']}: {_state(picture)}")
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
        sentence(f"alarm: rows of topic {what} wait: {why}" if is_topic(what) else f"alarm: {what}: {why}")
    if picture["database_trouble"]:
        sentence(f"alarm: {picture['database_trouble']}")
    _show_trouble(picture, aside={"database"})


def _show_tail(picture: dict[str, Any]) -> None:
    def known(value: Any, unit: str = "") -> str:
        return "unknown" if value is None else f"{value:,.1f}{unit}" if isinstance(value, float) else f"{value:,}{unit}"

    sentence(f"tail {picture['name']} of {picture['outbox']}, by the slot {picture['slot']}: {_state(picture)}")
    sentence(
        f"published {picture['relayed']:,} at {picture['rows_per_s']:,.0f} rows/s, dead {known(picture['dead_rows'])}, "
        f"behind {known(picture['lag_seconds'], ' s')}, log kept for it {known(picture['retained_bytes'], ' bytes')}"
    )
    table(
        "Shards",
        ["shard", "state", "attempt", "process", "published", "rows/s", "buffered"],
        [
            [
                str(shard["shard"]),
                shard["state"],
                str(shard["attempt"]),
                f"{shard['host']}:{shard['pid']}" if shard["pid"] else "",
                f"{shard['relayed']:,}",
                f"{shard['rows_per_s']:,.0f}",
                f"{shard['buffered_rows'] or 0:,.0f}",
            ]
            for shard in picture["shards"]
        ],
        importance=("shard", "state", "published", "rows/s"),
    )
    _show_errors(picture)
    _show_alarms(picture)
    _show_trouble(picture)


def _show_tracker(picture: dict[str, Any]) -> None:
    sentence(f"tracker {picture['name']} of {picture['marker_topic']}: {_state(picture)}")
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
    _show_alarms(picture)
    _show_trouble(picture)


def _show_capture(picture: dict[str, Any]) -> None:
    sentence(f"capture {picture['name']}: {_state(picture)}")
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
    _show_alarms(picture)
    _show_trouble(picture)


def _show_errors(picture: dict[str, Any]) -> None:
    for shard in picture["shards"]:
        if shard["last_error"]:
            sentence(f"the last error of shard {shard['shard']}: {shard['last_error']}")


def _show_alarms(picture: dict[str, Any]) -> None:
    for what, why in picture["alarms"].items():
        sentence(f"alarm: {what}: {why}")


def _show_trouble(picture: dict[str, Any], aside: Collection[str] = ()) -> None:
    """Show what the process waits for, and which servers do not answer, except those in `aside`."""
    if picture["waiting_for"]:
        sentence(f"the process waits to take over: {picture['waiting_for']}")
    for server, state in picture["servers"].items():
        if server not in aside and not state["up"]:
            sentence(f"alarm: its {server} does not answer: {state['trouble']}")
