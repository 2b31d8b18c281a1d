import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import open_directory


@pytest.fixture
def state() -> Iterator[Path]:
    """A directory for the kept stacks of one test."""
    directory = open_directory()
    yield directory
    shutil.rmtree(directory)
