"""Decides when a leader without progress steps down: another process may reach the servers that this one does not.

1. A leader is stalled if it has done nothing for `step_down_seconds`, and attempts have failed for as long. These are
   the attempts to reach one of its servers, or to take over, or the attempts at all of its shards. An attempt that only
   takes long has not failed.
2. A stalled leader steps down if work waits. A thread of its own asks for that. An error, or no answer within 5 s,
   counts as a yes.

A needless step-down costs one take-over. A leader that does not step down may keep all rows waiting.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thresher.core.errors import PipelineProblem
from thresher.service.cool_down import CoolDown
from thresher.service.health import ServerHealth, ShardHealth
from thresher.service.leading import Leading
from thresher.service.servers.reach import Reach

_LOOK_SECONDS = 1.0
# Without other competitors, the election returns leadership at once: resign at most this often.
_GIVE_BACK_SECONDS = 5.0
# How long to wait for an answer, and how long a "no" stays valid.
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderStall:
    """The reason why a leader makes no progress, and whether the reason is a server that it does not reach."""

    why: str
    server_lost: bool


def failing(waiting_for: str | None, shards: Sequence[ShardHealth]) -> str | None:
    """Return the error of a leader that cannot take over, or whose shards all fail; None if it may make progress.

    A shard that has not failed yet may be recovering, however long that takes.
    """
    if waiting_for is not None:
        return f"it cannot take over: {waiting_for}"
    if shards and all(not shard.working and shard.failures for shard in shards):
        return f"no shard works: {shards[0].last_error}"
    return None


def stalled(
    servers: Mapping[str, ServerHealth],
    *,
    failing_for: str | None,
    failing_seconds: float,
    idle_seconds: float,
    limit_seconds: float,
) -> LeaderStall | None:
    """Decide whether a leader has made no progress for `limit_seconds`.

    `idle_seconds`: the time since anything was done, or since the leadership began.
    """
    if idle_seconds < limit_seconds:
        return None
    for name, server in servers.items():
        if server.failures and server.seconds >= limit_seconds:
            return LeaderStall(
                why=f"its {name} was not reached for {server.seconds:.0f} s: {server.text}", server_lost=True
            )
    if failing_for is not None and failing_seconds >= limit_seconds:
        return LeaderStall(why=f"for {failing_seconds:.0f} s, {failing_for}", server_lost=False)
    return None


class PendingWorkQuery:
    """Asks in a thread whether work waits. For one thread; `ask` raises a `PipelineProblem` if it cannot know."""

    def __init__(self, ask: Callable[[], bool | None]) -> None:
        self._ask = ask
        self._asked: float | None = None
        self._answers: list[bool | None] = []

    def may_wait(self, now: float) -> bool | None:
        """Return whether work waits, True if that is unknown; None while an answer may still come."""
        if self._asked is None or (self._answers == [False] and now - self._asked >= _ANSWER_SECONDS):
            self._asked, self._answers = now, []
            threading.Thread(target=self._run, args=(self._answers,), name="work-waits", daemon=True).start()
        if self._answers:
            return self._answers[0] is not False
        return True if now - self._asked >= _ANSWER_SECONDS else None

    def _run(self, answers: list[bool | None]) -> None:
        try:
            answers.append(self._ask())
        except PipelineProblem:
            answers.append(None)


class StallWatch:
    """Finds a stall of one leadership. `done` returns the number of processed rows so far. For one thread."""

    def __init__(self, leading: Leading, done: Callable[[], int], *, limit_seconds: float, now: float) -> None:
        self._leading, self._done, self._limit_seconds = leading, done, limit_seconds
        self._last_done, self._idle_since = done(), now
        # When attempts began to fail, how many had failed at the last look, and when the last failure was seen.
        self._failing_since: float | None = None
        self._failures, self._failed_at = 0, now
        self._query: PendingWorkQuery | None = None

    def look(self, now: float) -> LeaderStall | None:
        """Return the reason to step down now, if there is one."""
        if (done := self._done()) != self._last_done:
            self._last_done, self._idle_since = done, now
        shards = self._leading.shard_health()
        failing_for = failing(self._leading.waiting_for, shards)
        failures = self._leading.take_over.failures + sum(shard.failures for shard in shards)
        if failing_for is None:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = self._failed_at = now
        elif failures > self._failures:
            self._failed_at = now
        self._failures = failures
        stall = stalled(
            self._leading.reach.health(),
            failing_for=failing_for,
            failing_seconds=0.0 if self._failing_since is None else self._failed_at - self._failing_since,
            idle_seconds=now - self._idle_since,
            limit_seconds=self._limit_seconds,
        )
        if stall is None:
            self._query = None
            return None
        self._query = self._query or PendingWorkQuery(self._leading.work_waits)
        return stall if self._query.may_wait(now) else None


class LeadershipPolicy:
    """Decides when a process may lead, and when it lets another process lead. For one thread.

    `done` returns the number of rows that the process has processed. `alone`: no other process competes, so that a
    leader never steps down.
    """

    def __init__(self, reach: Reach, done: Callable[[], int], *, step_down_seconds: float, alone: bool) -> None:
        self.alone = alone
        self._reach, self._done, self._step_down_seconds = reach, done, step_down_seconds
        self._cool_down = CoolDown()
        # Whether the reason for the cool-down is a server that was not reached.
        self._server_lost = False
        self._watch: StallWatch | None = None
        self._looked = self._given_back = -math.inf

    def gives_back(self, now: float) -> bool:
        """Whether a process that is elected during its cool-down resigns now; true every few seconds at most."""
        if now - self._given_back < _GIVE_BACK_SECONDS:
            return False
        self._given_back = now
        return True

    def may_lead(self, now: float) -> bool:
        """Whether no cool-down runs. After a lost server, the cool-down ends early when all servers answer."""
        back = self._server_lost and all(server.up for server in self._reach.health().values())
        return back or self._cool_down.over(now)

    def begin(self, leading: Leading, now: float) -> None:
        """Watch a new leadership for stalls."""
        self._watch = StallWatch(leading, self._done, limit_seconds=self._step_down_seconds, now=now)

    def stall(self, now: float) -> LeaderStall | None:
        """Return the reason to step down, if there is one. Checks once a second."""
        if self.alone or self._watch is None or now - self._looked < _LOOK_SECONDS:
            return None
        self._looked = now
        return self._watch.look(now)

    def superseded(self, *, lasted: float, now: float) -> None:
        """Begin the cool-down after a superseded leadership that lasted this many seconds."""
        self._cool_down = self._cool_down.failed(lasted=lasted, now=now)
        self._server_lost, self._given_back = False, now

    def stepped_down(self, stall: LeaderStall, *, lasted: float, now: float) -> None:
        """Begin the cool-down after a step-down. The stalled time at the end does not count as lasted."""
        self._cool_down = self._cool_down.failed(lasted=lasted - self._step_down_seconds, now=now)
        self._server_lost, self._given_back = stall.server_lost, now
