"""The pipeline of the demo: each shard squares its numbers into a Kafka topic, slowly enough to be watched."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from thresher.spark import Pipeline, Shard, Step

Config = Mapping[str, Any]
Batches = Iterator[pa.RecordBatch]


def pipeline(*, bootstrap: str, topic: str, numbers: int) -> Pipeline:
    """Return the pipeline: two shards, so many numbers each."""
    here = "thresher.cli.squares"
    return Pipeline(
        name="squares",
        shards=2,
        steps=(
            Step(function=f"{here}:read", config={"numbers": numbers, "batch": 100, "pause_seconds": 0.03}),
            Step(function=f"{here}:square"),
            Step(function=f"{here}:publish", config={"bootstrap": bootstrap, "topic": topic}),
        ),
    )


def read(shard: Shard, config: Config) -> Batches:
    """Give this shard's numbers, from the first one in every attempt."""
    for start in range(0, config["numbers"], config["batch"]):
        yield pa.record_batch({"number": range(start, start + config["batch"])})
        shard.wait(config["pause_seconds"])


def square(_shard: Shard, _config: Config, batches: Batches) -> Batches:
    """Square them."""
    for batch in batches:
        yield batch.append_column("square", pc.multiply_checked(batch["number"], batch["number"]))


def publish(shard: Shard, config: Config, batches: Batches) -> None:
    """Produce each batch and wait until Kafka has it."""
    # Only errors in its log: a broker that has just started makes its clients wait, which is no news.
    settings = {"bootstrap.servers": config["bootstrap"], "enable.idempotence": True, "linger.ms": 5, "log_level": 3}
    producer = Producer(settings)
    for batch in batches:
        for number, squared in zip(batch["number"].to_pylist(), batch["square"].to_pylist(), strict=True):
            producer.produce(config["topic"], key=f"{shard.index}-{number}", value=str(squared))
        producer.flush()
        shard.count("squares", batch.num_rows)
