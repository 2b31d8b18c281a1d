"""The process that owns a kept stack: starts its servers, says where they are, and stops them when told to.

Run as `python -m thresher.devstack.host NAME` by `KeptStack.up`, in a session of its own.
"""

import fcntl
import json
import os
import signal
import sys
import threading
from dataclasses import asdict

from thresher.core.errors import ThresherError
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.kept import Endpoints, KeptStack, Spec
from thresher.devstack.postgres import PostgresOptions
from thresher.devstack.stack import Stack


def main() -> int:
    """Hold the stack until SIGTERM; 1 with the reason on standard error if it cannot start."""
    kept = KeptStack(sys.argv[1])
    told_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _signal, _frame: told_to_stop.set())
    lock = os.open(kept.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"stack {kept.name!r} is being started by another command already\n")
        return 1
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    spec = Spec(**json.loads(kept.spec_file.read_text(encoding="utf-8")))
    try:
        with Stack(
            kept.directory,
            postgres=PostgresOptions(port=spec.postgres_port),
            kafka=KafkaOptions(version=spec.kafka_version, nodes=spec.nodes, port=spec.kafka_port),
        ) as stack:
            _publish(kept, stack)
            told_to_stop.wait()
            kept.endpoints_file.unlink(missing_ok=True)
    except ThresherError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _publish(kept: KeptStack, stack: Stack) -> None:
    endpoints = Endpoints(
        dsn=stack.postgres.dsn(),
        bootstrap=stack.kafka.bootstrap,
        processes={"host": os.getpid(), **{server.name: server.pid for server in stack.servers}},
    )
    # Whole or absent for whoever reads it; the connection string has a password.
    draft = kept.endpoints_file.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(asdict(endpoints)), encoding="utf-8")
    draft.rename(kept.endpoints_file)


if __name__ == "__main__":
    sys.exit(main())
