"""Queues in the memory of one process, for the tests of applications."""

from thresher.queue.memory.service import MemoryQueueService
from thresher.queue.memory.tracker import DeadLetter

__all__ = ["DeadLetter", "MemoryQueueService"]
