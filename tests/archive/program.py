"""An archiver as a program that kills or stops itself at a given point. Takes its settings as JSON.

python -m tests.archive.program '{"dsn": "…", "to": "/archive", "point": "written", "signal": "SIGKILL", "after": 2}'
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thresher.archive.archiver import Archiver
from thresher.archive.run import ArchiveJob, ArchivePoint
from thresher.archive.target import target_of
from thresher.core.errors import ThresherError
from thresher.db import TableName


def main(given: Mapping[str, Any]) -> int:
    left = int(given.get("after", 1))

    def reach(point: ArchivePoint) -> None:
        nonlocal left
        if point == given.get("point"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.Signals[given["signal"]])

    job = ArchiveJob(
        dsn=given["dsn"],
        outbox=TableName(table="outbox"),
        target=target_of(given["to"], base=Path.cwd()),
        older_than_seconds=3600,
        batch_rows=int(given.get("rows", 10)),
    )
    try:
        Archiver(job, reach=reach).run()
    except ThresherError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
