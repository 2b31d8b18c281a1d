"""Helpers for tests of asyncio queues: event loops, and a consumer in one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from thresher.queue import aio
from thresher.queue.memory import MemoryQueueService

SOON_SECONDS = 30.0


def coroutine(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(**fixtures), 2 * SOON_SECONDS)

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def consuming(**keys: Any) -> AsyncIterator[tuple[MemoryQueueService, aio.QueueProducer, aio.QueueConsumer]]:
    with MemoryQueueService(keys) as memory:
        async with aio.QueueService(memory) as service:
            queue = service.queue("orders")
            async with queue.producer() as producer, queue.consumer() as consumer:
                yield memory, producer, consumer


async def turns(count: int) -> None:
    """Let the event loop run `count` iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
