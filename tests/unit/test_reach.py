"""Whether a server is up, by the attempts to reach it."""

import time

from hypothesis import given
from hypothesis import strategies as st

from tests.processes import eventually
from thresher.core.errors import Trouble
from thresher.db.problem import DatabaseLost
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.probing import Probing, rest_seconds
from thresher.service.servers.reach import FRESH_SECONDS, Contact, Reach

BEGAN = 1_000.0
NEW = Contact(server="database", since=BEGAN)


def test_a_server_that_was_never_reached_is_not_up() -> None:
    health = NEW.health(BEGAN)
    assert (health.up, health.kind, health.text, health.failures) == (
        False,
        "database_lost",
        "it has not been reached yet",
        0,
    )


def test_the_last_attempt_decides() -> None:
    failed = NEW.failed(DatabaseLost("it hung up")).failed(DatabaseLost("it refused"))
    health = failed.health(BEGAN + 7)
    assert (health.up, health.kind, health.text) == (False, "database_lost", "it refused")
    assert (health.failures, health.seconds) == (2, 7)
    reached = failed.succeeded(BEGAN + 9)
    assert (reached.health(BEGAN + 10).up, reached.health(BEGAN + 10).seconds) == (True, 1)
    again = reached.failed(DatabaseLost("it hung up")).health(BEGAN + 20)
    assert (again.up, again.failures, again.seconds) == (False, 1, 11)


def test_a_success_older_than_a_minute_says_nothing() -> None:
    reached = NEW.succeeded(BEGAN)
    assert reached.health(BEGAN + FRESH_SECONDS).up
    stale = reached.health(BEGAN + FRESH_SECONDS + 1)
    assert (stale.up, stale.kind, stale.text) == (False, "database_lost", "it has not answered for 61 s")


def test_an_error_without_a_text_has_its_name() -> None:
    assert NEW.failed(ZeroDivisionError()).text == "ZeroDivisionError"


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 200)), max_size=20), st.floats(0, 200))
def test_up_means_that_the_last_attempt_succeeded_lately(steps: list[tuple[bool, float]], later: float) -> None:
    contact, now = NEW, BEGAN
    succeeded_at, failures = None, 0
    for good, seconds in steps:
        now += seconds
        contact = contact.succeeded(now) if good else contact.failed(Trouble("no"))
        succeeded_at, failures = (now, 0) if good else (succeeded_at, failures + 1)
    now += later
    health = contact.health(now)
    assert health.up == (succeeded_at is not None and not failures and now - succeeded_at <= FRESH_SECONDS)
    assert health.failures == failures
    assert health.up == (health.kind == health.text == "")


def test_names_of_unknown_servers_are_skipped() -> None:
    reach = Reach(["database", "broker"])
    reach.all_succeeded()
    reach.failed("progress", Trouble("no"))
    reach.succeeded("progress")
    assert {name: each.up for name, each in reach.health().items()} == {"database": True, "broker": True}


def test_a_standby_needs_its_election_too() -> None:
    now = [BEGAN]
    reach = Reach(["broker"], clock=lambda: now[0])
    reach.all_succeeded()
    assert "election" not in reach.health()
    assert reach.health(standby=True)["election"].text == "it has not begun"
    reach.election = lambda: None
    assert reach.health(standby=True)["election"].up
    reach.election = lambda: "no lease"
    now[0] += 8
    election = reach.health(standby=True)["election"]
    assert (election.up, election.kind, election.text, election.seconds) == (False, "election_waits", "no lease", 8)
    # A leader's election is heard too, so that its silence counts from the end of the leadership.
    reach.election = lambda: None
    now[0] += 3600
    assert "election" not in reach.health()
    reach.election = lambda: "no lease"
    assert reach.health(standby=True)["election"].seconds == 0


def test_a_reached_server_is_not_probed_and_others_are() -> None:
    reached = NEW.succeeded(BEGAN)
    assert [rest_seconds(reached.health(BEGAN + seconds)) for seconds in (0, 10, 15, 40)] == [15, 5, 0, 0]
    assert rest_seconds(NEW.health(BEGAN)) == 0
    assert rest_seconds(reached.failed(Trouble("no")).health(BEGAN)) == 0


def test_a_server_with_unanswered_looks_is_probed_sometimes() -> None:
    reach, probes = Reach(["database"]), list[float]()
    reach.failed("database", Trouble("no answer"), check=True)
    watched = Probing({"database": lambda: probes.append(time.monotonic())}, reach, ProcessCounts(), lost_seconds=0.2)
    watched.start()
    eventually(lambda: len(probes) >= 3, 30.0)
    watched.close()
    assert probes[2] - probes[0] >= 0.4
