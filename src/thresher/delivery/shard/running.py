"""Runs a protocol in a shard: performs each effect as a step of the shard, and sends the answer back."""

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from thresher.delivery.carrier import Steps
from thresher.delivery.effects import AwaitSettled, Effect, Handlers, Settle, Take
from thresher.spark.worker.shard import Shard

# Effects that are no steps: they wait for rows, or for the settler's thread, which has a step of its own.
_WAITS: tuple[type[Effect], ...] = (Take, Settle, AwaitSettled)


def run(shard: Shard, steps: Steps, handlers: Handlers) -> None:
    """Run a protocol to its end. An error of an effect is raised, and ends the attempt."""
    running: dict[type[Effect], AbstractContextManager[None]] = {
        effect: nullcontext() if effect in _WAITS else shard.step(step_name(effect)) for effect in handlers
    }
    answer: Any = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration:
            return
        kind = type(effect)
        with running[kind]:
            answer = handlers[kind](effect)


def step_name(effect: type[Effect]) -> str:
    """Return an effect's name as a step of its shard: `ReadControl` is `read control`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", effect.__name__).lower()
