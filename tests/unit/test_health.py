"""Liveness and readiness: which process to keep, and which process does its work."""

import math
from typing import Any

import pytest

from thresher.relay.report.metrics import WORDING
from thresher.service.health import ProcessHealth, Role, ServerHealth, ShardHealth, liveness, readiness

UP = ShardHealth(shard=0, state="running", working=True)
RECOVERING = ShardHealth(shard=1, state="running", working=False)
DOWN = ShardHealth(shard=1, state="backing off", working=False, last_error="the database failed")
LOST = ("database_lost", "the database failed: it hung up")


HEALTHY = ServerHealth(up=True)
SILENT = ServerHealth(up=False, kind="broker_lost", text="the broker failed: it hung up")
UNHEARD = ServerHealth(up=False, kind="election_waits", text="it has not answered yet")


def seen(**known: Any) -> ProcessHealth:
    return ProcessHealth(wording=WORDING, **known)


@pytest.mark.parametrize(
    ("process_health", "code", "reason"),
    [
        (seen(role=Role.LEADING, shards=[UP]), 200, "relaying"),
        (seen(role=Role.LEADING, shards=[UP], alarms=["orders"]), 200, "relaying"),
        (seen(role=Role.LEADING, shards=[UP, RECOVERING]), 503, "shards-not-relaying"),
        (seen(role=Role.LEADING, shards=[UP, DOWN]), 503, "shards-not-relaying"),
        (seen(role=Role.LEADING), 503, "shards-not-relaying"),
        (seen(role=Role.LEADING, shards=[UP], trouble=LOST), 503, "database-lost"),
        (seen(role=Role.LEADING, shards=[UP], servers={"database": HEALTHY, "broker": SILENT}), 503, "broker-lost"),
        (seen(role=Role.LEADING, shards=[UP], servers={"database": HEALTHY, "broker": HEALTHY}), 200, "relaying"),
        (seen(role=Role.STANDBY), 200, "standby"),
        (seen(role=Role.STANDBY, servers={"database": HEALTHY, "broker": SILENT}), 503, "broker-lost"),
        (seen(role=Role.STANDBY, servers={"broker": HEALTHY, "election": UNHEARD}), 503, "election-waits"),
        (seen(role=Role.STANDBY, servers={"broker": HEALTHY, "election": HEALTHY}), 200, "standby"),
        (seen(role=Role.TAKING_OVER, servers={"broker": SILENT}), 503, "taking-over"),
        (seen(role=Role.STANDBY, trouble=("broker_lost", "x")), 503, "broker-lost"),
        (seen(role=Role.TAKING_OVER, waiting_for="the database failed"), 503, "taking-over"),
        (seen(role=Role.STOPPING, shards=[UP]), 503, "stopping"),
        (seen(role=Role.STOPPED), 503, "stopped"),
        (seen(role=Role.FAILED), 503, "failed"),
    ],
)
def test_relaying_leaders_and_capable_standbys_are_ready(process_health: ProcessHealth, code: int, reason: str) -> None:
    answer = readiness(process_health).answer()
    assert isinstance(answer.content, dict)
    assert (answer.code, answer.content["reason"], answer.content["role"]) == (code, reason, str(process_health.role))
    assert answer.content["status"] == ("ok" if code == 200 else "not ok")


def test_an_unready_process_gives_its_reason() -> None:
    assert readiness(seen(role=Role.LEADING, shards=[UP, DOWN])).detail["shards"] == [
        {"shard": 1, "state": "backing off", "last_error": "the database failed"}
    ]
    assert readiness(seen(role=Role.TAKING_OVER, waiting_for="why")).detail["waiting_for"] == "why"
    assert readiness(seen(role=Role.LEADING, shards=[UP], trouble=LOST)).detail["trouble"] == LOST[1]
    lost = readiness(seen(role=Role.TAKING_OVER, servers={"database": HEALTHY, "broker": SILENT}))
    assert lost.detail["servers"] == {"broker": SILENT.text}
    assert readiness(seen(role=Role.STANDBY, servers={"broker": SILENT})).detail["trouble"] == SILENT.text
    assert readiness(seen(role=Role.LEADING, shards=[UP], alarms=["b", "a"])).detail["held_topics"] == ["a", "b"]


@pytest.mark.parametrize("role", list(Role))
def test_liveness_does_not_fail_for_unreachable_servers(role: Role) -> None:
    process_health = seen(
        role=role,
        trouble=LOST,
        waiting_for="the database",
        shards=[DOWN],
        servers={"broker": SILENT},
        silent_seconds={"engine": 5.0, "watch": 0.0},
    )
    assert liveness(process_health).answer().code == 200


@pytest.mark.parametrize("silent", [{"engine": 31.0, "watch": 0.0}, {"engine": 0.0, "watch": math.inf}])
def test_a_stopped_thread_fails_liveness(silent: dict[str, float]) -> None:
    verdict = liveness(seen(role=Role.LEADING, shards=[UP], silent_seconds=silent))
    (name,) = [name for name, seconds in silent.items() if seconds > 30]
    assert (verdict.answer().code, verdict.reason, verdict.detail) == (503, "silent-threads", {"threads": [name]})
