"""The programs in `examples/` with a harvest, run unchanged and all at once; `sasl_ssl.py` has its own test."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import environment, eventually
from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.outbox import Message

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 50
# Seen: 31 to 49 s for the whole test, on a machine with a load of six per core.
UP_SECONDS, DOWN_SECONDS = 120.0, 60.0


@dataclass
class Program:
    """A running example, and the outbox that it names."""

    process: subprocess.Popen[bytes]
    place: Place
    out: Path
    err: Path

    def told(self) -> str:
        return f"{self.process.args!r}: {self.out.read_text()}{self.err.read_text()}"

    def disturbed(self) -> bool:
        """Whether a shard had to start over: a commit took long, or the lease was lost and taken again."""
        return "backing off" in self.err.read_text() or self.out.read_text().count("leads, as ") > 1

    def relayed(self) -> bool:
        """Whether it reported all rows. After a disturbance, some rows count as recovered, not as relayed."""
        told = re.findall(r"relayed (\d+) records", self.out.read_text())
        return str(ROWS) in told or (bool(told) and self.disturbed())

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()


@contextmanager
def running(example: str, place: Place, directory: Path, directory_of_program: Path = EXAMPLES) -> Iterator[Program]:
    out, err = directory / f"{example}.out", directory / f"{example}.err"
    variables = environment(THRESHER_DS=place.dsn, THRESHER_BOOTSTRAP=place.stack.kafka.bootstrap)
    with out.open("wb") as told, err.open("wb") as complained:
        process = subprocess.Popen(
            [sys.executable, str(directory_of_program / f"{example}.py")],
            cwd=directory, env=variables, stdout=told, stderr=complained,
        )  # fmt: skip
    try:
        yield Program(process, place, out, err)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def places(stack: Stack, dsn: str, topic_prefix: str) -> Iterator[dict[str, Place]]:
    """The outbox of each example, all in one database: their names differ."""
    tables = {"basic": "outbox", "own_logging": "payments_outbox", "event_handler": "parcels_outbox"}
    made = {name: Place(stack, dsn, f"{topic_prefix}{name}-", table=table) for name, table in tables.items()}
    yield made
    # The programs name their own topics, without the test's prefix.
    made["basic"].admin.delete_topics([f"{name}.progress" for name in ("orders", "payments", "parcels")])


def test_example_programs_relay_report_and_stop_cleanly_on_sigterm(places: dict[str, Place], tmp_path: Path) -> None:
    for place in places.values():
        place.stash(*(Message(topic=place.topic, key=f"k{n % 7}", value=str(n)) for n in range(ROWS)))
    with ExitStack() as all_of_them:
        programs = {name: all_of_them.enter_context(running(name, place, tmp_path)) for name, place in places.items()}
        basic, logging, handler = programs.values()
        for program in programs.values():
            eventually(lambda: program.place.pending() == 0, UP_SECONDS, program.told)  # noqa: B023 - called at once
            values = {message.value() for message in program.place.read(ROWS)}
            assert values == {str(n).encode() for n in range(ROWS)}
        eventually(handler.relayed, UP_SECONDS, handler.told)
        for program in programs.values():
            program.process.send_signal(signal.SIGTERM)
        for program in programs.values():
            assert program.process.wait(DOWN_SECONDS) == 0, program.told()

    # On a busy machine, a lease may be lost and taken again, which is logged. Nothing worse may happen.
    for program in programs.values():
        assert "Traceback" not in program.err.read_text(), program.told()
    assert basic.lines() == []
    records = [json.loads(line) for line in logging.lines()]
    assert {"thresher"} == {record["from"].partition(".")[0] for record in records}
    assert any(re.match("leadership of payments acquired, as ", record["message"]) for record in records)
    first, *_, last = handler.lines()
    assert re.fullmatch(r"leads, as [0-9a-f-]{36}", first)
    assert last.startswith("leads no more")

    # A program on another relay's table is refused with a line that says what to do, and without a traceback.
    source = (EXAMPLES / "event_handler.py").read_text()
    (tmp_path / "second.py").write_text(source.replace('"parcels_outbox"', '"outbox"').replace("1.0", "2.0"))
    with running("second", basic.place, tmp_path, directory_of_program=tmp_path) as second:
        assert second.process.wait(UP_SECONDS) == 4, second.told()
    refused = second.err.read_text()
    assert "Traceback" not in refused, second.told()
    assert "\"outbox\" is relayed under the name 'orders'" in refused
    assert "Give this relay the name 'orders' to make it a standby, or give it another outbox" in refused
