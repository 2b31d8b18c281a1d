"""The process that owns a kept stack: starts its servers, publishes their addresses, and stops them on SIGTERM.

`NamedStack.up` runs it as `python -m thresher.devstack.host NAME`, in a session of its own. It inherits a descriptor
that holds the stack's lock, and keeps it open until it ends.
"""

import json
import os
import signal
import sys
from dataclasses import asdict
from queue import SimpleQueue

from thresher.core.errors import ThresherError
from thresher.core.interruptible import interruptible
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.cache import write_whole
from thresher.devstack.named_stack import Endpoints, NamedStack, Ports, Spec, read_json
from thresher.devstack.postgres import PostgresOptions
from thresher.devstack.stack import Stack


def main() -> int:
    """Run the stack until SIGTERM. Return 1, with the reason on standard error, if it cannot start."""
    kept = NamedStack(sys.argv[1])
    # A SimpleQueue is reentrant: a signal handler may put into it at any moment.
    told_to_stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: told_to_stop.put(number))
    write_whole(kept.host_file, json.dumps(os.getpid()))
    spec = Spec(**read_json(kept.spec_file))
    try:
        last = kept.last_ports()
        stack = Stack(
            kept.directory,
            postgres=PostgresOptions(port=spec.postgres_port, last_port=None if last is None else last.postgres),
            kafka=KafkaOptions(
                version=spec.kafka_version,
                nodes=spec.nodes,
                port=spec.kafka_port,
                last_ports=() if last is None else last.kafka,
            ),
        )
        with interruptible(), stack:
            _publish(kept, stack)
            told_to_stop.get()
            kept.endpoints_file.unlink(missing_ok=True)
    except (ThresherError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _publish(kept: NamedStack, stack: Stack) -> None:
    endpoints = Endpoints(
        dsn=stack.postgres.dsn(),
        bootstrap=stack.kafka.bootstrap,
        processes={"host": os.getpid(), **{server.name: server.pid for server in stack.servers}},
    )
    ports = Ports(postgres=stack.postgres.port, kafka=tuple(stack.kafka.port(node=node) for node in stack.kafka.nodes))
    # Written first: a process that finds the endpoints finds the ports too.
    write_whole(kept.ports_file, json.dumps(asdict(ports)))
    write_whole(kept.endpoints_file, json.dumps(asdict(endpoints)))


if __name__ == "__main__":
    sys.exit(main())
