import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import open_directory


@pytest.fixture
def state() -> Iterator[Path]:
    """A place for kept stacks that the test has for itself."""
    directory = open_directory()
    yield directory
    shutil.rmtree(directory)
