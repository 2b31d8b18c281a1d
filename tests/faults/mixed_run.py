"""A random soak: faults of every kind, by a schedule, against a program under load; the readers' records are checked.

Each part of the scene (`tests/faults/mix`, and the subject's own) has its faults as methods, named as in the schedule.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from tests.faults import drift
from tests.faults.fault_schedule import Fault
from tests.faults.mix.agenda import DOWN, Agenda
from tests.faults.mix.brokers import Brokers
from tests.faults.mix.clock import Clock
from tests.faults.mix.crew import Stage
from tests.faults.mix.movement import Movement
from tests.faults.mix.outline import Outline
from tests.faults.mix.wires import Wires
from tests.faults.scene import Scene
from tests.faults.subject import Judgement, MixedSubject

# After the first time without progress, no further fault comes; after the second, the run has failed.
STILL_SECONDS, STUCK_SECONDS = 15.0, 180.0
TOLD_SECONDS = 10.0
# The time that processes have to write their stacks.
STACKS_SECONDS = 2.0
PARTS: tuple[type, ...] = (Brokers, Wires, Clock)


class MixedRun(Scene[MixedSubject]):
    """A scene with a schedule of faults. A context manager."""

    def __init__(
        self, subject: MixedSubject, *, nodes: int = 1, tell: Callable[[str], None] = lambda _line: None
    ) -> None:
        super().__init__(subject, nodes=nodes)
        self.outline = Outline()
        self._tell = tell
        self._agenda = Agenda(tell)
        self._crew = subject.crew(
            Stage(start=self._start_program, agenda=self._agenda, outline=self.outline, said=self.said)
        )

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            agenda = self._agenda
            self._brokers = Brokers(self.stack.kafka, agenda=agenda)
            self._parts: tuple[object, ...] = (
                self._crew,
                self._brokers,
                Wires(self.proxies, agenda=agenda),
                Clock(self.clock, agenda=agenda),
                *self.subject.parts(agenda, self._crew),
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.close()
        self.process = None
        super().__exit__()

    def _start_program(self, layout: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
        return self.start(**layout)

    # The run

    def run(self, faults: Iterable[Fault], seconds: float, *, at_most: float | None = None) -> None:
        """Do the faults when they are due, keep programs running, and end after `seconds`, with all faults healed.

        Without progress for long, the schedule's clock stops until there is progress again: a program that is always
        disturbed during its start proves nothing. No progress within a limit, although no fault comes, is an error.
        With `at_most`, the run lasts until `seconds` have passed on that clock, and `at_most` seconds in all.
        """
        self._agenda.begin()
        self._crew.begin()
        coming = list(faults)
        clock = told = last = 0.0
        with Movement() as movement:
            while (now := self._agenda.now) < seconds or (clock < seconds and now < (at_most or seconds)):
                self._agenda.do_due(now)
                self._look_after()
                movement.look(now, self.subject.look)
                clock += 0.0 if movement.still(now) > STILL_SECONDS else now - last
                last = now
                while coming and coming[0].at <= clock:
                    self._do(coming.pop(0))
                if movement.still(now) > STUCK_SECONDS:
                    self.outline.wrong.append(
                        f"at {now:.1f} s nothing had moved for {STUCK_SECONDS:g} s: {self._stuck()}"
                    )
                    movement.moved = now
                if now - told >= TOLD_SECONDS:
                    told = now
                    self._agenda.tell(f"{movement.waiting} wait, {len(self._crew.alive())} programs")
                time.sleep(0.1)
            self.outline.stood_still(movement.longest)
        self.outline.unreached = len(coming)
        self._heal()

    def _do(self, fault: Fault) -> None:
        self._tell(fault.line())
        name = fault.kind.replace("-", "_")
        (act,) = (getattr(part, name) for part in self._parts if hasattr(part, name))
        try:
            done = act(**fault.parameters)
        except DOWN as error:
            self._agenda.tell(f"{fault.kind} could not be done: {str(error).strip()}")
            done = False
        (self.outline.missed if done is False else self.outline.faults).update([fault.kind])

    def _look_after(self) -> None:
        self._crew.look_after()
        self._brokers.look_after()

    def _heal(self) -> None:
        self._agenda.heal()
        self.subject.heal()
        self._look_after()
        self._brokers.heal()

    # The end

    def verdict(self, seconds: float = STUCK_SECONDS, *, everything: bool = False) -> Judgement:
        """End the load, wait until it is drained or makes no progress for `seconds`, stop the programs, and judge."""
        self.subject.end_load()
        self._drain(seconds)
        self._crew.stop()
        verdict = self.subject.verdict(everything=everything)
        self.outline.wrong += self.subject.wrong()
        return verdict

    def _drain(self, seconds: float) -> None:
        with Movement(moved=self._agenda.now) as movement:
            while not self.subject.drained():
                self._look_after()
                movement.look(self._agenda.now, self.subject.look)
                still = movement.still(self._agenda.now)
                assert still < seconds, f"{movement.waiting} are left, and none moves: {self._stuck()}"
                time.sleep(0.1)
            self.outline.stood_still(movement.longest)

    def _stuck(self) -> str:
        """Return whatever may explain the missing progress; the log's end has the stacks of every process."""
        for process in self._crew.followers():
            os.kill(process, drift.STACKS_SIGNAL)
        time.sleep(STACKS_SECONDS)
        brokers = "\n".join(f"broker {node}: {each.tail(40)}" for node, each in self.stack.kafka.nodes.items())
        return f"{self.subject.circumstances()}\n{brokers}\n{self.said(16_000)}"
