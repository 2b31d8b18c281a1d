"""A tail as a program, with a hook for its worker. Takes its settings as JSON."""

import json
import logging
import sys
from typing import Any

from tests.faults import drift
from thresher.core.errors import ThresherError
from thresher.db import TableName
from thresher.service.leading import Leading
from thresher.spark import Policy
from thresher.spark.driver.signals import stopped_by_signals
from thresher.tail.leader.workload import TailWorkload
from thresher.tail.settings import TailLimits, TailSettings, Via


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    if given.get("hook") == drift.HOOK:
        drift.follow()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    via = Via(given.get("via", Via.TABLE))
    settings = TailSettings(
        name=given["name"],
        dsn=given["dsn"],
        outbox=TableName(table="outbox"),
        via=via,
        slot=given.get("slot"),
        kafka={"bootstrap.servers": given["bootstrap"], **given.get("kafka", {})},
        limits=TailLimits(batch_rows=given.get("batch_rows", 50), grace_seconds=given.get("grace_seconds", 0.5)),
        transforms=tuple(given.get("transforms", ())),
        keep_seconds=0.0 if via is Via.TABLE else None,
    )
    policy = {"back_off_seconds": 0.1, "back_off_most_seconds": 1.0, "healthy_seconds": 5.0, **given.get("policy", {})}
    tail = Leading(TailWorkload(settings, policy=Policy(**policy), hook=given.get("hook")))
    try:
        with stopped_by_signals(tail):
            tail.run()
    except ThresherError as error:
        logging.getLogger("thresher").critical("ended: %s: %s", type(error).__name__, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
