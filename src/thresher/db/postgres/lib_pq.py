"""Converts connection strings of Go's driver lib/pq, which goharvest's configuration has, for libpq.

Without `sslmode`, lib/pq demands TLS, and libpq only prefers it: `require` is added.
"""

import re

from psycopg import ProgrammingError, conninfo, pq

# Parameters of lib/pq itself. lib/pq treats every other parameter that libpq does not know as a session setting.
_OF_DRIVER = frozenset({"binary_parameters", "disable_prepared_binary_result"})
_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?=\s|$)", re.DOTALL)


def names_no_sslmode(dsn: str) -> bool:
    """Whether a well-formed connection string leaves `sslmode` to the driver."""
    try:
        return "sslmode" not in conninfo.conninfo_to_dict(dsn)
    except (ProgrammingError, UnicodeError):
        return False


def with_tls(dsn: str) -> str:
    """Return the connection string with `sslmode=require`, unless it has an `sslmode`."""
    return conninfo.make_conninfo(dsn, sslmode="require") if names_no_sslmode(dsn) else dsn


def from_lib_pq(dsn: str) -> str:
    """Return the connection string for libpq. A parameter that libpq does not know becomes a session setting."""
    pairs = dict(_PAIR.findall(dsn))
    if "://" in dsn or _PAIR.sub("", dsn).strip():
        return dsn
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    values = {
        name: re.sub(r"\\(.)", r"\1", value[1:-1] if value.startswith("'") else value, flags=re.DOTALL)
        for name, value in pairs.items()
        if name not in _OF_DRIVER
    }
    settings = {name: value for name, value in values.items() if name not in known}
    if len(values) == len(pairs) and not settings:
        return dsn
    options = [values.pop("options", "")]
    for name, value in settings.items():
        escaped = re.sub(r"([\s\\])", r"\\\1", value)
        options.append(f"-c {name}={escaped}")
    rest = {name: value for name, value in values.items() if name in known}
    return conninfo.make_conninfo("", **rest, options=" ".join(filter(None, options)) or None)
