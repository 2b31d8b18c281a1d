"""A pooler between us and the server is recognised by the backend processes of two sessions."""

import pytest

from thresher.db.postgres.pooler import are_shared
from thresher.db.postgres.sessions import explain
from thresher.db.problem import DatabaseRefused


@pytest.mark.parametrize(
    ("seen", "others", "shared"),
    [
        (["1"], ["2"], False),
        (["1", "1", "1"], ["2", "2"], False),
        (["1"], ["1"], True),
        (["1", "1", "3"], ["2", "2"], True),
        (["1", "1"], ["2", "3"], True),
        (["1", "2"], ["2"], True),
    ],
)
def test_sessions_have_processes_of_their_own_or_share_them(seen: list[str], others: list[str], shared: bool) -> None:
    assert are_shared(seen, others) is shared


def test_a_pooler_that_refuses_a_sessions_options_is_named() -> None:
    text = 'connection failed: connection to server at "127.0.0.1": FATAL:  unsupported startup parameter: options'
    problem = explain(None, text)
    assert isinstance(problem, DatabaseRefused)
    assert "a pooler between the relay and Postgres" in str(problem)
    assert problem.exit_code == 4
