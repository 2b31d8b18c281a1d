"""A tracker as a program, with a hook for its workers. Takes its settings as JSON.

python -m tests.tracker.program '{"keys": {…}, "crash": {"point": "flushed", "who": "driver", "done": "…"}}'
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from tests.tracker.crash_hook import CRASH, HOOK
from thresher.core.errors import ThresherError
from thresher.spark.driver.signals import stopped_by_signals
from thresher.tracker.tracker import Tracker


def main(given: Mapping[str, Any]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    crash = given.get("crash")
    if crash is not None:
        # The JVM and its workers inherit the variable.
        os.environ[CRASH] = json.dumps({**crash, "driver": os.getpid()})
    tracker = Tracker(given["keys"], hook=None if crash is None else HOOK)
    try:
        with stopped_by_signals(tracker):
            tracker.start()
            tracker.wait()
    except ThresherError as error:
        logging.critical("ended: %s: %s", type(error).__name__, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
