"""Whether a process is alive, and whether it is ready: decisions for an orchestrator's probes, from what is known.

Alive is a process whose own threads run. A server that is down, a shard that backs off, a leadership that is another's
say nothing against it: killing it would help nobody. Ready is a leader whose shards work, and a standby that could take
over: its election answers, and so do its servers. An orchestrator that waits for the new process before it ends the old
one waits for a standby, and must not end the old one for a process that reaches nothing.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thresher.observe.server import Answer
from thresher.service.wording import Wording

# A thread that is owed so long has stopped, rather than is busy.
_SILENT_SECONDS = 30.0


class Role(enum.StrEnum):
    """The role of a process for its pipeline at the moment."""

    # Another one leads; of the database it has its lease's connection at most.
    STANDBY = "standby"
    TAKING_OVER = "taking over"
    LEADING = "leading"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHealth:
    """The facts about a shard that readiness rests on."""

    shard: int
    state: str
    # It has recovered, and does what it is there for.
    working: bool
    last_error: str | None = None
    # The attempts at it that have failed since the leadership began.
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """Whether a server answers. One that does not has the kind and the text of the reason."""

    up: bool
    kind: str = ""
    text: str = ""
    # Since it was last reached; before the first time, since the process began.
    seconds: float = 0.0
    # Attempts that failed since.
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The facts about a process, without asking any server."""

    role: Role
    wording: Wording
    # The reason why it cannot take over yet, and the kind and text of the trouble that its watch met last.
    waiting_for: str | None = None
    trouble: tuple[str, str] | None = None
    # The servers that it needs, by name; of a standby also its election.
    servers: Mapping[str, ServerHealth] = field(default_factory=dict)
    shards: Sequence[ShardHealth] = ()
    alarms: Sequence[str] = ()
    # For how long each thread of the driver has owed an answer; infinite where it has died.
    silent_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Good or not, why not in a word that stays the same, and what a person would want to know."""

    good: bool
    reason: str
    detail: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> Answer:
        """Return it as a probe is answered: 200 or 503."""
        status = "ok" if self.good else "not ok"
        return Answer(code=200 if self.good else 503, content={"status": status, "reason": self.reason, **self.detail})


def liveness(vitals: Vitals) -> Verdict:
    """Decide whether the process is worth keeping."""
    silent = {name: seconds for name, seconds in vitals.silent_seconds.items() if seconds > _SILENT_SECONDS}
    if silent:
        return Verdict(good=False, reason="silent-threads", detail={"threads": sorted(silent)})
    return Verdict(good=True, reason="alive", detail={"role": str(vitals.role)})


def readiness(vitals: Vitals) -> Verdict:
    """Decide whether the process does what it is there for, or would at once."""
    detail: dict[str, Any] = {"role": str(vitals.role)}
    if vitals.alarms:
        detail[vitals.wording.held] = sorted(vitals.alarms)
    down = {name: server for name, server in vitals.servers.items() if not server.up}
    if down:
        detail["servers"] = {name: server.text for name, server in down.items()}
    trouble = vitals.trouble or next(((server.kind, server.text) for server in down.values()), None)
    if vitals.role in {Role.LEADING, Role.STANDBY} and trouble is not None:
        kind, text = trouble
        return Verdict(good=False, reason=kind.replace("_", "-"), detail={**detail, "trouble": text})
    match vitals.role:
        case Role.STANDBY:
            return Verdict(good=True, reason="standby", detail=detail)
        case Role.LEADING:
            idle = [
                {"shard": each.shard, "state": each.state, "last_error": each.last_error}
                for each in vitals.shards
                if not each.working
            ]
            if idle or not vitals.shards:
                return Verdict(
                    good=False, reason=f"shards-not-{vitals.wording.doing}", detail={**detail, "shards": idle}
                )
            return Verdict(good=True, reason=vitals.wording.doing, detail=detail)
        case Role.TAKING_OVER:
            return Verdict(good=False, reason="taking-over", detail={**detail, "waiting_for": vitals.waiting_for})
        case _:
            return Verdict(good=False, reason=str(vitals.role), detail=detail)
