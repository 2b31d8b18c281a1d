"""The subject of a run with faults: a pipeline as a program, with its load and the verdict on it."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.mix.agenda import Agenda
from tests.faults.mix.programs import Programs
from tests.faults.program import Program
from tests.faults.proxied import proxied_broker
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.stack import Stack
from thresher.testing.checker import Verdict
from thresher.testing.pump import Tally


class Subject(abc.ABC):
    """What a run with faults has to know about the pipeline under test.

    `name` begins its transactional ids (`<name>-<shard>`). `left` is the import path of a function that says, in a
    worker, how many of the rows with these ids are still to be settled.
    """

    name: str
    shards: int
    left: str

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
    def end_load(self) -> Tally:
        """Stop writing, and return what was written. Harmless the second time."""

    @abc.abstractmethod
    def drained(self) -> bool:
        """Whether nothing waits any more."""

    @abc.abstractmethod
    def verdict(self, *, everything: bool) -> Verdict:
        """Judge by what readers of committed records got; `everything`: by what readers of all got, who may get one
        again."""


class MixedSubject(Subject):
    """What a run with mixed faults has to know besides."""

    # Settings of the program that a newcomer or a restart may change, as they are at first.
    layout: Mapping[str, Any]

    @abc.abstractmethod
    def parts(self, agenda: Agenda, programs: Programs) -> Sequence[object]:
        """Return what has faults of the subject's own, as methods under the names of the schedule."""

    @abc.abstractmethod
    def counted(self, last: int) -> tuple[int, int, int] | None:
        """Return how many rows wait, how many of them up to an id, and the highest id; None if nobody answers."""

    @abc.abstractmethod
    def circumstances(self) -> str:
        """Return what the database knows of rows that wait and of who works on them."""

    @abc.abstractmethod
    def wrong(self) -> list[str]:
        """Return what is wrong besides the verdict, which has been given."""
