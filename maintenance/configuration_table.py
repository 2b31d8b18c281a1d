"""Writes the tables of the settings of the relay and of queues into docs/configuration.md, each from its form.

Run it after a change of `thresher.harvest.form` or `thresher.queue.configuration`: a test compares page and forms.
"""

from pathlib import Path

from thresher.config.docs_table import with_table
from thresher.harvest.form import RelayForm
from thresher.queue.configuration import QueueConfig

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
QUEUES = "\n## Queues\n"


def with_tables(page: str) -> str:
    """Return the page with the relay's table before the heading of queues, and the queues' behind it."""
    relay, heading, queues = page.partition(QUEUES)
    return with_table(relay, RelayForm) + heading + with_table(queues, QueueConfig)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
