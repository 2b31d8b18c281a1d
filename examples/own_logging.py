"""A relay that logs by a handler of the program's own, in place of the root logger: one line of JSON for each record.

    THRESHER_DS=postgresql://… THRESHER_BOOTSTRAP=localhost:9092 .venv/bin/python examples/own_logging.py

`./run stack up` starts a local Postgres and Kafka and says where they are; `./run schema create --outbox
payments_outbox` makes the table.
"""

import json
import logging
import os
import sys

from thresher.harvest import Harvest, Settings, ThresherError, stopped_by_signals


class Lines(logging.Handler):
    """Any handler will do: this one stands for the program's own way to log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record to standard output."""
        try:
            line = {"level": record.levelname.lower(), "from": record.name, "message": record.getMessage()}
            print(json.dumps(line), flush=True)
        except Exception:  # noqa: BLE001 - a record that cannot be written is reported as logging has it
            self.handleError(record)


logger = logging.getLogger("shop.relay")
logger.setLevel(logging.DEBUG)
logger.addHandler(Lines())

harvest = Harvest(
    Settings(
        name="payments",
        data_source=os.environ["THRESHER_DS"],
        # A table of its own, beside those of the other examples: a table is relayed under one name.
        outbox="payments_outbox",
        kafka={"bootstrap.servers": os.environ["THRESHER_BOOTSTRAP"]},
    ),
    logger=logger,
)

try:
    with stopped_by_signals(harvest), harvest:
        harvest.wait()
except ThresherError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
