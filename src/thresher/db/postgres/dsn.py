"""Connection strings: checked before they are used, and shown without their secrets."""

import os
from itertools import zip_longest
from typing import Any

from psycopg import ProgrammingError, conninfo
from psycopg.pq import Conninfo

from thresher.core.errors import InvalidInput
from thresher.core.secrets import MASK, Secret, SecretText, revealed, secrets_in_url

_LOOPBACK = {"127.0.0.1": "localhost", "::1": "localhost"}
_SECRET = frozenset({"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"})


def check_dsn(dsn: str) -> None:
    """Raise `InvalidInput` for a malformed connection string. The message never contains the password."""
    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeError):
        # The driver's message may quote the string, with its password.
        raise InvalidInput("not a Postgres connection string (host=… dbname=… or postgresql://…)") from None
    if "@" in str(parts.get("host", "")) or not str(parts.get("port", "1")).replace(",", "").isdigit():
        # Part of a password with an unescaped @ or / in a URL is parsed as host or port: neither may be printed.
        raise InvalidInput("host or port cannot be right; in a URL, write @ as %40, / as %2F and : as %3A")
    if "hostaddr" not in parts and _address_beside(parts):
        # libpq connects to it, whatever the host is.
        raise InvalidInput(
            "the environment has an address (PGHOSTADDR, or hostaddr in the service of PGSERVICE) that overrules the "
            "host of the connection string: unset it, or write hostaddr into the connection string"
        )


def _address_beside(parts: dict[str, Any]) -> str | None:
    """Return the address to which libpq would connect instead of the host that the connection string names."""
    if "service" in parts:
        return os.environ.get("PGHOSTADDR")
    return _defaults().get("hostaddr") if "host" in parts else None


def _defaults() -> dict[str, str]:
    """Return what libpq adds to a connection string: from its variables, and from the service of PGSERVICE."""
    return {each.keyword.decode(): each.val.decode() for each in Conninfo.get_defaults() if each.val}


def databases_of(dsn: SecretText) -> frozenset[str]:
    """Return the databases that a connection string names, as host:port/name, without user and password.

    What it leaves out comes from libpq's variables and defaults. Empty if it is malformed.
    """
    content = revealed(dsn)
    try:
        check_dsn(content)
        parts = {name: str(value) for name, value in conninfo.conninfo_to_dict(content).items()}
    except InvalidInput:
        return frozenset()
    if "service" in parts:
        # Its file is libpq's to read. What stands beside it counts more than the file.
        more = [f" {name}={parts[name]}" for name in ("host", "hostaddr", "port", "dbname") if name in parts]
        return frozenset({f"service {parts['service']}{''.join(more)}"})
    parts = _defaults() | parts
    hosts, addresses = parts.get("host", "").split(","), parts.get("hostaddr", "").split(",")
    hosts = [_place(*each) for each in zip_longest(hosts, addresses, fillvalue="")]
    ports = parts.get("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    name = parts.get("dbname") or parts.get("user", "")
    return frozenset(f"{host}:{port or 5432}/{name}" for host, port in zip(hosts, ports, strict=True))


def _place(host: str, address: str) -> str:
    """Return the name of a host; libpq connects to the address, if there is one."""
    host, address = (_LOOPBACK.get(each.lower(), each.lower()) if each else "" for each in (host, address))
    return f"{host} ({address})" if host and address not in {"", host} else host or address or "localhost"


def shown_databases(dsn: SecretText) -> str:
    """Return host, port and name of the database, for people."""
    return ", ".join(sorted(databases_of(dsn)))


def secrets_of_dsn(dsn: str) -> list[str]:
    """Return the secrets of a connection string; of a malformed string, those that can be recognized."""
    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeError):
        parts = {}
    return [*secrets_in_url(dsn), *(str(value) for name, value in parts.items() if name in _SECRET)]


def kept_dsn(given: Any) -> Any:
    """Return a connection string as a `Secret`, which shows all but its secrets. Anything else is returned as it is."""
    if not isinstance(given, str):
        return given
    try:
        return Secret(given, shown=shown_dsn(given))
    except InvalidInput:
        return Secret(given)


def shown_dsn(dsn: str) -> str:
    """Return a connection string as key=value pairs, with its secrets masked. Raises `InvalidInput`."""
    check_dsn(dsn)
    # Built from the parsed parts, so that nothing is shown that was not parsed.
    parts = {name: MASK if name in _SECRET else value for name, value in conninfo.conninfo_to_dict(dsn).items()}
    return conninfo.make_conninfo("", **parts)
