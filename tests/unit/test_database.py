"""The settings of the relay's sessions."""

from psycopg import conninfo

from thresher.db.postgres.sessions import session


def settings(dsn: str) -> dict[str, str]:
    """Return the server settings of the connection string. The last value of a setting counts."""
    options = str(conninfo.conninfo_to_dict(session(dsn, "relay"))["options"])
    words = options.replace("\\ ", "_").split()
    return dict(word.split("=") for word in words if word != "-c")


def test_timeouts_of_the_role_do_not_bind_the_relay() -> None:
    found = settings("host=db user=relay")
    assert {found[f"{what}_timeout"] for what in ("statement", "lock", "idle_session")} == {"0"}


def test_a_connection_string_sets_timeouts_but_not_synchronous_commit() -> None:
    found = settings("host=db options='-c lock_timeout=5s -c synchronous_commit=off'")
    assert (found["lock_timeout"], found["statement_timeout"]) == ("5s", "0")
    assert found["synchronous_commit"] == "on"
