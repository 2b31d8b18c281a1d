"""A relay as a program, with a hook for its workers. Takes its settings as JSON.

With `election`, it is a `Harvest` that competes, with default time-outs; with `as_command`, it is `thresher run`. With
`topic_lock`, it shares topics by locks; with `threads` too, in that many threads and without Spark.
"""

import json
import logging
import sys
from typing import Any

from tests.faults import drift
from thresher.core.errors import ThresherError
from thresher.core.secrets import revealed
from thresher.db import TableName
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.settings import Coordination, Delivery, Limits, Settings, TopicLocking
from thresher.relay.topic_lock.backend import DbBackend
from thresher.relay.topic_lock.workload import TopicLockWorkload
from thresher.service.leading import Leading
from thresher.spark import Policy, SparkOptions
from thresher.spark.driver.signals import stopped_by_signals


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    if given.get("hook") == drift.HOOK:
        drift.follow()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings = Settings(
        name=given["name"],
        dsn=given["dsn"],
        outbox=TableName(table="outbox"),
        kafka={"bootstrap.servers": given["bootstrap"], **given.get("kafka", {})},
        shards=given["shards"],
        limits=Limits(batch_rows=given.get("batch_rows", 500), grace_seconds=given.get("grace_seconds", 60.0)),
        delivery=Delivery(given.get("delivery", Delivery.EXACTLY_ONCE)),
        transforms=tuple(given.get("transforms", ())),
        producer_factory=given.get("producer_factory"),
        coordination=Coordination.LEADER if given.get("topic_lock") is None else Coordination.TOPIC_LOCK,
        topic_locking=TopicLocking(**given.get("topic_lock") or {}),
    )
    policy = {"back_off_seconds": 0.1, "back_off_most_seconds": 1.0, "healthy_seconds": 5.0, **given.get("policy", {})}
    if given.get("election"):
        return compete(settings, given)
    if given.get("threads"):
        return in_threads(settings, given)
    workload = RelayWorkload if settings.coordination is Coordination.LEADER else TopicLockWorkload
    relay = Leading(
        workload(settings, policy=Policy(**policy), hook=given.get("hook")),
        spark=SparkOptions(master=given["master"]) if given.get("master") else None,
    )
    try:
        with stopped_by_signals(relay):
            snapshot = relay.run()
    except ThresherError as error:
        logging.getLogger("thresher").critical("ended: %s: %s", type(error).__name__, error)
        return error.exit_code
    for shard in snapshot.shards if snapshot is not None else ():
        logging.info("shard %d: attempt %d, last error: %s", shard.shard, shard.attempt, shard.last_error)
    return 0


def in_threads(settings: Settings, given: dict[str, Any]) -> int:
    """Share topics by locks, without Spark."""
    backend = DbBackend(settings, threads=given["threads"], hook=given.get("hook"))
    try:
        with stopped_by_signals(backend):
            backend.start()
            backend.wait()
    except ThresherError as error:
        logging.getLogger("thresher").critical("ended: %s: %s", type(error).__name__, error)
        return error.exit_code
    logging.info("counted %s", dict(backend.counts))
    return 0


def compete(settings: Settings, given: dict[str, Any]) -> int:
    """Compete as a program that embeds a relay, or as the command."""
    if given.get("as_command"):
        return command(settings, given)
    # Imported here: the other kinds of programs start without these modules.
    from thresher.election.settings import ElectionKind, ElectionSettings
    from thresher.harvest.harvest import Harvest

    harvest = Harvest(settings, election=ElectionSettings(kind=ElectionKind(given["election"])), hook=given.get("hook"))
    try:
        with stopped_by_signals(harvest), harvest:
            harvest.wait()
    except ThresherError as error:
        logging.getLogger("thresher").critical("ended: %s: %s", type(error).__name__, error)
        return error.exit_code
    return 0


def command(settings: Settings, given: dict[str, Any]) -> int:
    """Compete as `thresher run`; return its exit code."""
    from thresher.cli.app import main as thresher

    flags = {
        "--name": settings.name, "--ds": revealed(settings.dsn), "--delivery": settings.delivery,
        "--shards": settings.shards, "--batch-rows": settings.limits.batch_rows, "--election": given["election"],
        "--status": "off",
    }  # fmt: skip
    if settings.delivery is Delivery.AT_LEAST_ONCE:
        del flags["--batch-rows"]
    words = [str(word) for flag in flags.items() for word in flag]
    words += [word for each in settings.kafka.items() for word in ("--kafka", "{}={}".format(*each))]
    words += [word for each in settings.transforms for word in ("--transform", each)]
    sys.argv = ["thresher", "run", *words]
    try:
        thresher()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
