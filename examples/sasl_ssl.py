"""A relay inside a program of one's own, over SASL_SSL with SCRAM and lz4; no secret is in its file or its log.

    .venv/bin/python examples/sasl_ssl.py examples/sasl_ssl.yaml

Anything in the file may be overridden by the environment: THRESHER_BOOTSTRAP, THRESHER_KAFKA_SASL_USERNAME,
THRESHER_KAFKA_SASL_PASSWORD_FILE, … The first SIGINT or SIGTERM lets it finish what is open.
"""

import logging
import os
import sys
from pathlib import Path

from thresher.core.errors import ThresherError
from thresher.core.secrets import mask_logs
from thresher.harvest import Harvest, load, stopped_by_signals


def main() -> int:
    """Relay until told to stop. The exit code is that of `thresher run`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        loaded = load(Path(sys.argv[1]), {}, os.environ)
        mask_logs(loaded.secrets)
        harvest = Harvest(
            loaded.settings,
            election=loaded.election,
            spark=loaded.spark,
            policy=loaded.policy,
            metrics_seconds=loaded.metrics_seconds,
            step_down_seconds=loaded.step_down_seconds,
        )
        with stopped_by_signals(harvest), harvest:
            harvest.wait()
    except ThresherError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
