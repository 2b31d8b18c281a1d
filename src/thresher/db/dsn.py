"""Connection strings, looked at before they are used, with errors that repeat nothing of them."""

from psycopg import ProgrammingError, conninfo

from thresher.core.errors import InvalidInput


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
