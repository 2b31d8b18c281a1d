"""Liveness and readiness of a process, for an orchestrator's probes. Pure decisions: no server is asked.

A process is alive while its own threads run. A server that is down or a shard in back-off does not count against it,
because a restart would not help. A leader is ready if its shards work. A standby is ready if it could take over: its
election and its servers answer. In a rolling update, the old leader therefore runs until the new standby reaches its
servers.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.observe.server import Answer
from thresher.service.wording import Wording

# A thread that is unresponsive for this long hangs, rather than is busy.
_SILENT_SECONDS = 30.0


class Role(enum.StrEnum):
    """The present role of a process for its pipeline."""

    # Another process leads. A standby has at most one database connection, for its lease.
    STANDBY = "standby"
    TAKING_OVER = "taking over"
    LEADING = "leading"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHealth:
    """The facts about a shard that readiness depends on."""

    shard: int
    state: str
    # The shard has recovered and processes rows.
    working: bool
    last_error: str | None = None
    # The failed attempts at the shard since the leadership began.
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """Whether a server answers. If it does not, `kind` and `text` say why."""

    up: bool
    kind: str = ""
    text: str = ""
    # Time since the server was last reached; before the first time, since the process began.
    seconds: float = 0.0
    # The failed attempts since then.
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHealth:
    """The facts about a process that the probes go by. No server is asked for them."""

    role: Role
    wording: Wording
    # The reason why it cannot take over yet, and kind and text of its present problem with a server or a step.
    waiting_for: str | None = None
    trouble: tuple[str, str] | None = None
    # The servers that the process needs, by name; for a standby, also its election.
    servers: Mapping[str, ServerHealth] = field(default_factory=dict)
    shards: Sequence[ShardHealth] = ()
    alarms: Sequence[str] = ()
    # For how many seconds each driver thread has been unresponsive; infinite if it has died.
    silent_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a probe: good or not, a stable word for the reason, and details for people."""

    good: bool
    reason: str
    detail: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> Answer:
        """Return the HTTP answer to the probe: 200 or 503."""
        status = "ok" if self.good else "not ok"
        return Answer(code=200 if self.good else 503, content={"status": status, "reason": self.reason, **self.detail})


def liveness(process_health: ProcessHealth) -> Verdict:
    """Decide whether the process is alive. If not, a restart may help."""
    silent = {name: seconds for name, seconds in process_health.silent_seconds.items() if seconds > _SILENT_SECONDS}
    if silent:
        return Verdict(good=False, reason="silent-threads", detail={"threads": sorted(silent)})
    return Verdict(good=True, reason="alive", detail={"role": str(process_health.role)})


def readiness(process_health: ProcessHealth) -> Verdict:
    """Decide whether the process works as a leader, or could take over as a standby."""
    detail: dict[str, Any] = {"role": str(process_health.role)}
    if process_health.alarms:
        detail[process_health.wording.held] = sorted(process_health.alarms)
    down = {name: server for name, server in process_health.servers.items() if not server.up}
    if down:
        detail["servers"] = {name: server.text for name, server in down.items()}
    trouble = process_health.trouble or next(((server.kind, server.text) for server in down.values()), None)
    if process_health.role in {Role.LEADING, Role.STANDBY} and trouble is not None:
        kind, text = trouble
        return Verdict(good=False, reason=kind.replace("_", "-"), detail={**detail, "trouble": text})
    match process_health.role:
        case Role.STANDBY:
            return Verdict(good=True, reason="standby", detail=detail)
        case Role.LEADING:
            idle = [
                {"shard": each.shard, "state": each.state, "last_error": each.last_error}
                for each in process_health.shards
                if not each.working
            ]
            if idle or not process_health.shards:
                return Verdict(
                    good=False, reason=f"shards-not-{process_health.wording.doing}", detail={**detail, "shards": idle}
                )
            return Verdict(good=True, reason=process_health.wording.doing, detail=detail)
        case Role.TAKING_OVER:
            return Verdict(
                good=False, reason="taking-over", detail={**detail, "waiting_for": process_health.waiting_for}
            )
        case _:
            return Verdict(good=False, reason=str(process_health.role), detail=detail)
