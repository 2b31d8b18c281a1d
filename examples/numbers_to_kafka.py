"""An example of the engine: numbers from one file per shard, squared, reach a Kafka topic in order.

    .venv/bin/python examples/numbers_to_kafka.py --bootstrap HOST:PORT --topic squares --numbers DIRECTORY --shards 2
    spark-submit examples/numbers_to_kafka.py …the same

Shard n reads `DIRECTORY/n.txt`, one number a line, from where it left off: `n.done` holds the lines that Kafka has
acknowledged. A crash between acknowledgement and `n.done` repeats a batch, so every number arrives at least once.
Within a partition numbers keep their order, and a repeated batch follows its original; only a worker that is paused in
the middle of a batch, and goes on after it was replaced, may still send what it had queued: that takes transactions.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from thresher.core.errors import ThresherError
from thresher.spark import Engine, Pipeline, Shard, SparkOptions, Step, run

Config = Mapping[str, Any]


def read(shard: Shard, config: Config) -> Iterator[pa.RecordBatch]:
    """Give the numbers that are not done yet, and go on giving those that are added, unless it is to end at the end."""
    directory = Path(config["directory"])
    done = directory / f"{shard.index}.done"
    line = int(done.read_text()) if done.exists() else 0
    with (directory / f"{shard.index}.txt").open() as file:
        for _ in range(line):
            file.readline()
        while not shard.stopping:
            numbers: list[int] = []
            while len(numbers) < config["batch"]:
                place, text = file.tell(), file.readline()
                if not text or (config["follow"] and not text.endswith("\n")):
                    # The end, or a last line that may still be growing.
                    file.seek(place)
                    break
                numbers.append(int(text))
            if numbers:
                line += len(numbers)
                yield pa.record_batch({"number": numbers}).replace_schema_metadata({"line": str(line)})
            elif config["follow"]:
                shard.wait(0.05)
            else:
                return


def square(shard: Shard, _config: Config, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Square each number."""
    for batch in batches:
        squares = pc.multiply_checked(batch["number"], batch["number"])
        shard.count("squared", batch.num_rows)
        yield batch.append_column("square", squares)


def publish(shard: Shard, config: Config, batches: Iterator[pa.RecordBatch]) -> None:
    """Produce each batch, wait until Kafka has all of it, and only then note it as done."""
    producer = Producer(
        {
            "bootstrap.servers": config["bootstrap"],
            "enable.idempotence": True,
            # A record that cannot be sent fails those behind it, instead of being overtaken by them.
            "enable.gapless.guarantee": True,
            "linger.ms": 0,
        }
    )
    done = Path(config["directory"]) / f"{shard.index}.done"
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for batch in batches:
        for number, squared in zip(batch["number"].to_pylist(), batch["square"].to_pylist(), strict=True):
            producer.produce(config["topic"], key=str(number), value=str(squared), on_delivery=delivered)
        producer.flush()
        if failures:
            raise KafkaException(failures[0])
        draft = done.with_suffix(f".draft-{shard.attempt}")
        draft.write_text(batch.schema.metadata[b"line"].decode())
        draft.rename(done)
        shard.count("published", batch.num_rows)


def main() -> int:
    """Run it until the files end or a signal comes; print how it ended as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--numbers", required=True, help="the directory with 0.txt, 1.txt, …")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--follow", action="store_true", help="wait for more at the end of a file")
    parser.add_argument("--master", help="a Spark master; by default local threads")
    options = parser.parse_args()
    directory = str(Path(options.numbers).absolute())
    engine = Engine(
        Pipeline(
            name="numbers",
            shards=options.shards,
            steps=(
                Step(
                    function="numbers_to_kafka:read",
                    config={"directory": directory, "batch": options.batch, "follow": options.follow},
                ),
                Step(function="numbers_to_kafka:square"),
                Step(
                    function="numbers_to_kafka:publish",
                    config={"bootstrap": options.bootstrap, "topic": options.topic, "directory": directory},
                ),
            ),
        ),
        # The functions are in this very file: workers on other machines get it sent.
        spark=SparkOptions(master=options.master, py_files=(__file__,)),
    )
    try:
        ended = run(engine)
    except ThresherError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(ended.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
