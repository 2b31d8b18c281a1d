"""Runs the tests that are too slow for every change: those marked `soak`, several times if requested.

./run soak engine [--times 1] [pytest options]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, help="how many times, each in another order")
    options, others = parser.parse_known_args()
    began = time.monotonic()
    failed = 0
    for _ in range(options.times):
        command = [sys.executable, "-m", "pytest", "-m", "soak", *others]
        failed += subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"ok": not failed, "times": options.times, "failed": failed, "seconds": seconds}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
