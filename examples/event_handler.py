"""A relay that tells the program when it begins to lead, when it ceases to, and how much it has relayed.

    THRESHER_DS=postgresql://… THRESHER_BOOTSTRAP=localhost:9092 .venv/bin/python examples/event_handler.py

`./run stack up` starts a local Postgres and Kafka and says where they are; `./run schema create --outbox
parcels_outbox` makes the table.
"""

import os
import sys

from thresher.harvest import (
    Event,
    Harvest,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    MeterRead,
    Settings,
    ThresherError,
    stopped_by_signals,
)

harvest = Harvest(
    Settings(
        name="parcels",
        data_source=os.environ["THRESHER_DS"],
        # A table of its own, beside those of the other examples: a table is relayed under one name.
        outbox="parcels_outbox",
        kafka={"bootstrap.servers": os.environ["THRESHER_BOOTSTRAP"]},
    ),
    metrics_seconds=1.0,
)


@harvest.on_event
def show(event: Event) -> None:
    """Called in a thread of its own, with one event after another. What it raises is logged, and harms nobody."""
    match event:
        case LeaderAcquired(leader_id=leader_id):
            print(f"leads, as {leader_id}", flush=True)
        case LeaderRefreshed(leader_id=leader_id):
            print(f"leads on, as {leader_id}", flush=True)
        case LeaderRevoked():
            print("leads no more", flush=True)
        case LeaderFenced(reason=reason):
            print(f"leads no more, and another may already: {reason}", flush=True)
        case MeterRead(relayed=relayed, rate=rate):
            print(f"relayed {relayed:,} records, {rate:,.0f} a second", flush=True)


try:
    with stopped_by_signals(harvest), harvest:
        harvest.wait()
except ThresherError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
