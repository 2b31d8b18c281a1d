"""A program that must not end has its consumers in a process of their own, and starts that process again when it dies.

    THRESHER_BOOTSTRAP_SERVERS=HOST:PORT THRESHER_MESSAGE_TOPIC=messages THRESHER_MARKER_TOPIC=markers \
        python examples/consumer_process.py python examples/queue_worker.py orders

The Kafka client can crash (docs/architecture/kafka.md), and takes its process with it, as `kill -9` does: nothing is
lost, and the messages in progress are redelivered. The process may be any program: a worker of a queue, or one that
calls `consume` of an inbox. It shares nothing with this one but the environment, so no thread of this program is copied
into it. SIGTERM and SIGINT stop both. If this program is killed, the consumers go on until they are stopped too.
"""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

logger = logging.getLogger("consumers")
# The pause before a new start: doubled after each death, up to the longest, and short again after a minute of work.
_SHORTEST_SECONDS, _LONGEST_SECONDS, _WORKED_SECONDS = 0.5, 30.0, 60.0


class ConsumerProcess:
    """Keeps a program running in a process of its own, until `stop`. A program that ends by itself with 0 is done."""

    def __init__(self, command: Sequence[str], *, stop_seconds: float = 60.0) -> None:
        self._command, self._stop_seconds = command, stop_seconds
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="consumers")
        self.deaths = 0

    def start(self) -> None:
        """Start the program, and start it again whenever it dies."""
        self._thread.start()

    def stop(self) -> None:
        """Let the program finish what it has begun; kill it if that takes too long."""
        with self._lock:
            self._stopping.set()
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(self._stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join()

    def wait(self) -> None:
        """Wait until the program has ended for good."""
        self._thread.join()

    def _keep(self) -> None:
        pause = _SHORTEST_SECONDS
        while True:
            with self._lock:
                if self._stopping.is_set():
                    return
                process = self._process = subprocess.Popen(self._command)
            began = time.monotonic()
            status = process.wait()
            if status == 0 or self._stopping.is_set():
                return
            self.deaths += 1
            if time.monotonic() - began > _WORKED_SECONDS:
                pause = _SHORTEST_SECONDS
            logger.warning("the consumers ended with status %d: they start again in %g s", status, pause)
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_SECONDS)


def main() -> None:
    """Keep the program that is named running. Your own program does its work instead of waiting."""
    logging.basicConfig(level=logging.INFO)
    consumers = ConsumerProcess(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        # A thread stops them: the handler must not wait.
        signal.signal(number, lambda *_: threading.Thread(target=consumers.stop).start())
    consumers.start()
    consumers.wait()


if __name__ == "__main__":
    main()
