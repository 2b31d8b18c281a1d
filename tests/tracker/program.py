"""A tracker as a program, with a hook for its workers. Takes its settings as JSON.

python -m tests.tracker.program '{"keys": {…}, "hook": "tests.tracker.crash_hook:reached"}'
"""

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from thresher.core.errors import ThresherError
from thresher.spark.driver.signals import stopped_by_signals
from thresher.tracker.tracker import Tracker


def main(given: Mapping[str, Any]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    tracker = Tracker(given["keys"], hook=given.get("hook"))
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
