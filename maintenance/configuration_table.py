"""Writes the tables of the settings of all pipelines into docs/configuration.md, each from its form.

Run it after a change of a form: a test compares page and forms.
"""

from pathlib import Path

from thresher.capture.configuration import CaptureForm
from thresher.config.docs_table import with_table
from thresher.harvest.form import RelayForm
from thresher.queue.configuration import QueueConfig
from thresher.tracker.configuration import OWN_KEYS, TrackerForm

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
QUEUES, TRACKER, CAPTURE = "\n## Queues\n", "\n### The tracker's keys\n", "\n## Capture\n"


def with_tables(page: str) -> str:
    """Return the page with each table: the relay's, then those of queues, tracker and capture behind their headings."""
    relay, of_queues, rest = page.partition(QUEUES)
    queues, of_tracker, more = rest.partition(TRACKER)
    tracker, of_capture, capture = more.partition(CAPTURE)
    return "".join(
        (
            with_table(relay, RelayForm),
            of_queues,
            with_table(queues, QueueConfig),
            of_tracker,
            with_table(tracker, TrackerForm, OWN_KEYS),
            of_capture,
            with_table(capture, CaptureForm),
        )
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
