"""A counter as a program: competes, leads, serves its pages, and stops on SIGTERM. Takes its settings as JSON.

Its first line of output is the port of its pages. Its last line names the relay's modules that it has imported.
"""

import json
import logging
import sys
from contextlib import closing
from typing import Any

from tests.service.numbers import NumbersWorkload
from thresher.core.errors import ThresherError
from thresher.election.election import competitor
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.observe.server import Server
from thresher.service.pages import StatusPages
from thresher.service.service import Service
from thresher.spark.driver.signals import stopped_by_signals

_NOT_OURS = ("thresher.relay", "thresher.delivery", "thresher.harvest", "thresher.outbox")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    workload = NumbersWorkload(given["name"], given["kafka"])
    settings = ElectionSettings(kind=ElectionKind(given["election"]))
    service = Service(
        workload, election=lambda: competitor(settings, name=workload.name, kafka=workload.kafka, dsn=given.get("dsn"))
    )
    with closing(StatusPages(service)) as board, Server("127.0.0.1", 0, board.pages) as server:
        say(str(server.port))
        try:
            with stopped_by_signals(service), service:
                service.wait()
        except ThresherError as error:
            say(f"{type(error).__name__}: {error}")
            return error.exit_code
    say(json.dumps(sorted(name for name in sys.modules if name.startswith(_NOT_OURS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
