"""A program with an engine, for tests that signal and kill it.

Takes a JSON object with pipeline, policy and spark; prints snapshots as JSON lines.
"""

import argparse
import faulthandler
import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from thresher.core.errors import ThresherError
from thresher.spark import Engine, Pipeline, Policy, SparkOptions, Step, run


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # shows a test where it hangs
    parser = argparse.ArgumentParser()
    parser.add_argument("given")
    given = json.loads(parser.parse_args().given)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    steps = tuple(Step(function=f"functions:{name}", config=config) for name, config in given["steps"])
    # Frequent heartbeats, because figures come with them.
    policy = Policy(**{"beat_seconds": 0.2, **given.get("policy", {})})
    spark: Any = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.get("spark", {}).items()
    }
    engine = Engine(
        Pipeline(name="test", shards=given.get("shards", 2), steps=steps, policy=policy), spark=SparkOptions(**spark)
    )
    over = threading.Event()

    def show() -> None:
        # With `quiet`, few snapshots, so that printing does not count as work.
        while not over.wait(5.0 if given.get("quiet") else 0.05):
            print(json.dumps(engine.snapshot().to_json()), flush=True)

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    error = None
    try:
        run(engine)
    except ThresherError as problem:
        error = problem
    over.set()
    shower.join()
    print(json.dumps(engine.snapshot().to_json() | {"raised": type(error).__name__ if error else None}), flush=True)
    return 0 if error is None else error.exit_code


if __name__ == "__main__":
    sys.exit(main())
