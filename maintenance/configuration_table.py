"""Writes the table of the relay's settings into docs/configuration.md, from the relay's form.

Run it after a change of `thresher.harvest.form`: a test compares page and form.
"""

from pathlib import Path

from thresher.config.docs_table import with_table
from thresher.harvest.form import RelayForm

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), RelayForm))
