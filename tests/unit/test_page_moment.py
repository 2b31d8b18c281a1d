"""A page that has waited for a database shows the state after the wait."""

import socket
import threading
from typing import Any

import pytest

from tests.relay.scraping import Scraper, shown
from tests.unit.test_status import calls, process
from thresher.service.health import Role

__all__ = ["calls"]


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda page: page.samples()["thresher_leader", ()], 0),
        (lambda page: page.probe("/status")[1]["role"], "stopping"),
    ],
    ids=["metrics", "status"],
)
def test_a_page_shows_the_role_after_its_wait(
    calls: socket.socket,
    ask: Any,
    expected: Any,
) -> None:
    seen = process(calls, role=Role.LEADING, patience_seconds=1.0)
    calls.settimeout(60)
    answers: list[Any] = []

    def scrape(page: Scraper) -> None:
        answers.append(ask(page))

    with shown(seen) as page:
        asking = threading.Thread(target=scrape, args=[page], daemon=True)
        asking.start()
        # Now the page waits for its database.
        with calls.accept()[0]:
            seen.role = Role.STOPPING
            asking.join(60)
    assert answers == [expected]
