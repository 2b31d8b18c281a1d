"""Connection strings, looked at before they are used, and shown without their secrets."""

from psycopg import ProgrammingError, conninfo

from thresher.core.errors import InvalidInput
from thresher.core.secrets import MASK, secrets_in_url

_SECRET = frozenset({"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"})


def check_dsn(dsn: str) -> None:
    """Raise `InvalidInput` where it can be no Postgres connection string; its password is never in the message."""
    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeError):
        # The driver's text may repeat what it could not read, password and all.
        raise InvalidInput("not a Postgres connection string (host=… dbname=… or postgresql://…)") from None
    if "@" in str(parts.get("host", "")) or not str(parts.get("port", "1")).replace(",", "").isdigit():
        # A password with an unescaped @ or / in a URL ends up here in part, and must not be printed.
        raise InvalidInput("host or port cannot be right; in a URL, write @ as %40, / as %2F and : as %3A")


def secrets_of_dsn(dsn: str) -> list[str]:
    """Return what must not be shown of a connection string; as far as that can be told, of a malformed one too."""
    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeError):
        parts = {}
    return [*secrets_in_url(dsn), *(str(value) for name, value in parts.items() if name in _SECRET)]


def shown_dsn(dsn: str) -> str:
    """Return a connection string for people: as key=value, and without its secrets."""
    # Made anew from its parts, so that nothing is shown that was not understood.
    parts = {name: MASK if name in _SECRET else value for name, value in conninfo.conninfo_to_dict(dsn).items()}
    return conninfo.make_conninfo("", **parts)
