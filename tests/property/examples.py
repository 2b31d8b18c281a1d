"""The number of examples of a property: a tenth in `./run test quick`, which is meant for every save of a file."""

import os

QUICK = os.environ.get("THRESHER_TEST_QUICK") == "1"


def examples(number: int) -> int:
    """Return the number of examples for this run."""
    return max(10, number // 10) if QUICK else number
