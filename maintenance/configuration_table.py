"""Writes the tables of the settings of all pipelines into docs/configuration.md, each from its form.

Run it after a change of a form: a test compares page and forms.
"""

from pathlib import Path

from thresher.capture.configuration import CaptureForm
from thresher.config.docs_table import with_table
from thresher.harvest.form import RelayForm
from thresher.queue.configuration import QueueConfig
from thresher.tail.configuration import TailForm
from thresher.tracker.configuration import OWN_KEYS, TrackerForm

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
QUEUES, TRACKER, TAIL, CAPTURE = "\n## Queues\n", "\n### The tracker's keys\n", "\n## The tail\n", "\n## Capture\n"


def with_tables(page: str) -> str:
    """Return the page with each table: the relay's, then the others' behind their headings."""
    relay, of_queues, rest = page.partition(QUEUES)
    queues, of_tracker, rest = rest.partition(TRACKER)
    tracker, of_tail, rest = rest.partition(TAIL)
    tail, of_capture, capture = rest.partition(CAPTURE)
    return "".join(
        (
            with_table(relay, RelayForm),
            of_queues,
            with_table(queues, QueueConfig),
            of_tracker,
            with_table(tracker, TrackerForm, OWN_KEYS),
            of_tail,
            with_table(tail, TailForm),
            of_capture,
            with_table(capture, CaptureForm),
        )
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
