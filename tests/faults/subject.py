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
    """The interface of all verdicts."""

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""

    @property
    def examples(self) -> Mapping[str, tuple[str, ...]]:
        """Lines about some faults, by the name of the fault."""

    def line(self) -> str:
        """Return the verdict in a line."""


class Subject(abc.ABC):
    """The interface between a run with faults and the pipeline under test."""

    def broker(self, *ways: int) -> KafkaOptions:
        """Return the options of a cluster with a listener of each node behind the proxy at that port."""
        return proxied_broker(*ways)

    @abc.abstractmethod
    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        """Create tables and topics on servers that have just started; `bootstrap` leads through the proxies."""

    @abc.abstractmethod
    def program(self, **settings: Any) -> Program:
        """Return the program, not started; `settings` override its own."""

    @abc.abstractmethod
    def begin_load(self) -> None:
        """Begin to write, until `end_load`. May be called again after a verdict."""

    @abc.abstractmethod
    def end_load(self) -> object:
        """Stop writing, and return what was written. Idempotent."""

    @abc.abstractmethod
    def drained(self) -> bool:
        """Whether nothing is pending."""

    @abc.abstractmethod
    def verdict(self, *, everything: bool) -> Judgement:
        """Check the records of readers of committed records; `everything`: of readers of all records, with repeats."""


class CrashSubject(Subject):
    """The additional interface for a run that kills at crash points.

    `name` is the prefix of the pipeline's transactional ids (`<name>-<shard>`). `left` is the import path of a function
    that counts, in a worker, how many of the rows with these ids are not settled.
    """

    name: str
    shards: int
    left: str

    @abc.abstractmethod
    def end_load(self) -> Tally:
        """Stop writing, and return what was written."""

    @abc.abstractmethod
    def verdict(self, *, everything: bool) -> Verdict:
        """Check the records that readers got."""


class MixedSubject(Subject):
    """The additional interface for a run with mixed faults."""

    @abc.abstractmethod
    def crew(self, stage: Stage) -> Crew:
        """Return the part that starts the programs and keeps them running, with the faults of programs."""

    @abc.abstractmethod
    def parts(self, agenda: Agenda, crew: Crew) -> Sequence[object]:
        """Return the subject's own parts with faults, as methods named as in the schedule."""

    @abc.abstractmethod
    def look(self) -> Look | None:
        """Return how many rows or messages wait, and whether any moved since the last look; None without an answer."""

    @abc.abstractmethod
    def circumstances(self) -> str:
        """Return the servers' view of pending work and open sessions, for a failure's message."""

    @abc.abstractmethod
    def heal(self) -> None:
        """Start the subject's own servers that are down."""

    @abc.abstractmethod
    def wrong(self) -> list[str]:
        """Return further problems, after the verdict."""
