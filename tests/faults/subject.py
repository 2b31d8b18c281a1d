"""The subject of a run with faults: a pipeline as a program, with its load and the verdict on it."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.faults.mix.agenda import Agenda
from tests.faults.mix.crew import Crew, Stage
from tests.faults.mix.movement import Look
from tests.faults.program import Program
from tests.faults.proxied import proxied_broker
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.stack import Stack
from thresher.testing.checker import Verdict
from thresher.testing.pump import Tally


class Judgement(Protocol):
    """What a verdict says, whatever it counts; `examples` has lines by the name of what is wrong."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""

    @property
    def examples(self) -> Mapping[str, tuple[str, ...]]:
        """Lines by the name of what is wrong."""

    def line(self) -> str:
        """Return the verdict in a line."""


class Subject(abc.ABC):
    """What a run with faults has to know about what is tested."""

    def broker(self, *ways: int) -> KafkaOptions:
        """How the cluster is set up, with a way in to each node through the proxy at that port."""
        return proxied_broker(*ways)

    @abc.abstractmethod
    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        """Make tables and topics on servers that have just started; `bootstrap` leads through the proxies."""

    @abc.abstractmethod
    def program(self, **settings: Any) -> Program:
        """Return the program, to be started by whoever asks; `settings` override its own."""

    @abc.abstractmethod
    def begin_load(self) -> None:
        """Begin to write, until the load is ended; after a verdict, once more."""

    @abc.abstractmethod
    def end_load(self) -> object:
        """Stop writing, and return what was written. Harmless the second time."""

    @abc.abstractmethod
    def drained(self) -> bool:
        """Whether nothing waits any more."""

    @abc.abstractmethod
    def verdict(self, *, everything: bool) -> Judgement:
        """Judge by what readers of committed records got; `everything`: by what readers of all got, who may get one
        again."""


class CrashSubject(Subject):
    """What a run that kills at crash points has to know besides.

    `name` begins the pipeline's transactional ids (`<name>-<shard>`). `left` is the import path of a function that
    says, in a worker, how many of the rows with these ids are still to be settled.
    """

    name: str
    shards: int
    left: str

    @abc.abstractmethod
    def end_load(self) -> Tally:
        """Stop writing, and return what was written."""

    @abc.abstractmethod
    def verdict(self, *, everything: bool) -> Verdict:
        """Judge."""


class MixedSubject(Subject):
    """What a run with mixed faults has to know besides."""

    @abc.abstractmethod
    def crew(self, stage: Stage) -> Crew:
        """Return what starts the programs and keeps them running, with the faults that concern them."""

    @abc.abstractmethod
    def parts(self, agenda: Agenda, crew: Crew) -> Sequence[object]:
        """Return what has faults of the subject's own, as methods under the names of the schedule."""

    @abc.abstractmethod
    def look(self) -> Look | None:
        """Return how many wait, and whether any moved since the last look; None if nobody answers."""

    @abc.abstractmethod
    def circumstances(self) -> str:
        """Return what the servers know of what waits and of who works on it."""

    @abc.abstractmethod
    def heal(self) -> None:
        """Start servers of the subject's own that are down."""

    @abc.abstractmethod
    def wrong(self) -> list[str]:
        """Return what is wrong besides the verdict, which has been given."""
