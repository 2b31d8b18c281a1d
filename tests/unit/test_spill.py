"""Contents on disk: returned as they are, in space that is used again, in a file that nobody else can open."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from thresher.core.spill import Spill, SpillFull, SpillLost


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Spill]:
    with closing(Spill(64 << 20, str(tmp_path))) as made:
        yield made


def open_files(directory: Path) -> list[os.stat_result]:
    """The status of each open file of this process that is, or was, below a directory."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if descriptor.readlink().is_relative_to(directory):
                found.append(descriptor.stat())
        except FileNotFoundError:
            continue
    return found


def test_contents_are_returned_until_they_are_forgotten(spill: Spill) -> None:
    chance = random.Random(3)
    held: dict[int, bytes] = {}
    for _ in range(400):
        content = chance.randbytes(chance.choice((0, 1, 700, 5_000, 60_000, 300_000)))
        held[spill.put(content)] = content
        if len(held) > 40:
            place = chance.choice([*held])
            spill.forget(place)
            del held[place]
            with pytest.raises(SpillLost):
                spill.get(place)
    assert {place: spill.get(place) for place in held} == held
    assert len(spill) == len(held)


def test_freed_space_is_used_again_and_an_empty_file_given_back(spill: Spill, tmp_path: Path) -> None:
    for _ in range(3):
        places = [spill.put(bytes(1_000_000)) for _ in range(40)]
        assert 40_000_000 <= spill.bytes_on_disk < 42_000_000
        for place in places[1:]:
            spill.forget(place)
        again = [spill.put(bytes(1_000_000)) for _ in range(39)]
        assert spill.bytes_on_disk < 42_000_000
        for place in (places[0], *again):
            spill.forget(place)
        assert (spill.bytes_on_disk, open_files(tmp_path)) == (0, [])


def test_a_full_file_refuses_and_keeps_what_it_has(spill: Spill) -> None:
    contents = {spill.put(bytes([number]) * 1_000_000): number for number in range(60)}
    with pytest.raises(SpillFull, match=r"cannot grow beyond \d+ MB, of at most 64"):
        spill.put(bytes(9_000_000))
    assert all(spill.get(place) == bytes([number]) * 1_000_000 for place, number in contents.items())
    spill.forget(contents.popitem()[0])
    assert spill.get(spill.put(b"x" * 900_000)) == b"x" * 900_000


def test_a_full_disk_refuses_and_keeps_what_it_has(spill: Spill) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, before[1]))
    contents: dict[int, int] = {}
    try:
        for number in range(64):
            with contextlib.suppress(SpillFull):
                contents[spill.put(bytes([number]) * 500_000)] = number
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 10 < len(contents) == len(spill) < 17
    assert spill.get(spill.put(b"later")) == b"later"
    assert all(spill.get(place) == bytes([number]) * 500_000 for place, number in contents.items())


def test_a_directory_that_cannot_be_used_refuses() -> None:
    with closing(Spill(1 << 20, "/nowhere/at/all")) as spill, pytest.raises(SpillFull, match="/nowhere/at/all"):
        spill.put(b"x")


def test_nobody_else_can_open_the_file(spill: Spill, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = spill.put(random.Random(1).randbytes(5_000_000))
    finally:
        os.umask(before)
    (status,) = open_files(tmp_path)
    assert (status.st_mode & 0o777, status.st_nlink) == (0o600, 0)
    assert status.st_size >= 2_000_000
    spill.forget(place)
    assert [*tmp_path.iterdir()] == []


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    lines = (
        "import os, signal",
        "from thresher.core.spill import Spill",
        f"spill = Spill(64 << 20, {str(tmp_path)!r})",
        "spill.put(os.urandom(9_000_000))",
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    killed = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [*tmp_path.iterdir()] == []
