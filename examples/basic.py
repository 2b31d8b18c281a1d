"""A relay inside a program of one's own. Start it twice: one leads and relays, the other waits for its turn.

    THRESHER_DS=postgresql://… THRESHER_BOOTSTRAP=localhost:9092 .venv/bin/python examples/basic.py

`./run stack up` starts a local Postgres and Kafka and says where they are; `./run schema create` makes the table.
"""

import os
import sys

from thresher.harvest import Harvest, Settings, ThresherError, stopped_by_signals

harvest = Harvest(
    Settings(
        # Its identity: the same in every process that competes, another for every other outbox.
        name="orders",
        data_source=os.environ["THRESHER_DS"],
        outbox="outbox",
        kafka={"bootstrap.servers": os.environ["THRESHER_BOOTSTRAP"]},
    )
)

try:
    # The first SIGINT or SIGTERM lets it finish what is open, the second does not wait.
    with stopped_by_signals(harvest), harvest:
        # Returns when it was stopped, and raises what else has ended it.
        harvest.wait()
except ThresherError as error:
    # It says what to do; the exit code is that of `thresher run`.
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
