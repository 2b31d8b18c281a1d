"""A program whose handlers never return, over a queue in memory.

Its arguments say where handlers run, `threads` or `asyncio`, and how they hang. It prints "handling" for each message
that a handler gets. After signals end its run, it prints "given back" for each redelivered message, with its count.
"""

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from thresher.queue import aio
from thresher.queue.memory import MemoryQueueService

PATIENCE_SECONDS = 60.0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait(_: Any) -> None:
    say("handling")
    threading.Event().wait()


async def wait_in_loop(_: Any) -> None:
    say("handling")
    await asyncio.Event().wait()


async def ignore_cancellation(_: Any) -> None:
    say("handling")
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def block_loop(_: Any) -> None:
    say("handling")
    while True:
        time.sleep(PATIENCE_SECONDS)


HANDLERS = {"wait": wait_in_loop, "ignore": ignore_cancellation, "block": block_loop}


async def run_in_loop(memory: MemoryQueueService, hang: str) -> None:
    async with aio.QueueService(memory) as service:
        await service.queue("jobs").consumer().run(HANDLERS[hang], concurrency=2)


def main(where: str, hang: str) -> None:
    # Another thread of the application, which may receive signals too.
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    with MemoryQueueService() as memory:
        queue = memory.queue("jobs")
        with queue.producer() as producer:
            sent = [producer.send(payload) for payload in (b"1", b"2")]
        try:
            if where == "threads":
                queue.consumer().run(wait, concurrency=2)
            else:
                asyncio.run(run_in_loop(memory, hang))
        except SystemExit:
            with queue.consumer() as another:
                for _ in sent:
                    message = another.receive(PATIENCE_SECONDS)
                    say(f"given back {message and message.delivery_count}")
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
