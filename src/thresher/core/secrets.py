"""What must never be shown of a configuration: which of its values are secrets, and how texts are freed of them.

1. A secret is found by its key: passwords of connection strings, and properties whose names say so; and whatever was
   read from a file.
2. `Secrets.mask` takes every secret out of a text, however it is written there: as it is, escaped in a URL, a
   connection string or JSON, or one line of it.
3. Logs pass through `Masking`, which masks what is written: message, traceback and fields.
"""

import json
import logging
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

MASK = "***"
# Properties of Kafka's clients and of Spark. The URL where tokens are had is none.
_NAMES = re.compile(
    r"passw|passphrase|secret|credential(?!s\.client\.id)|jaas|token(?!\.endpoint)|access[._-]?key|private[._-]?key(?!\.file)"
    r"|ssl[._]key([._]pem)?$|oauthbearer\.config|oauthbearer\.extensions|user[._]?info",
    re.IGNORECASE,
)
# user:password@ in a URL of any kind.
_IN_URL = re.compile(r"://[^/?#\s:@]*:([^/?#\s]*)@")
# A shorter one is masked where it stands alone: it would be found in every other word.
_SHORT = 4
# The lines of a longer secret, such as a key in PEM, are secrets too.
_LINE = 8


def is_secret(name: str) -> bool:
    """Whether the value of a property must not be shown."""
    return _NAMES.search(name) is not None


class Secrets:
    """The secret values of one configuration. Shows none of them itself."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = frozenset(filter(None, values))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def mask(self, text: str) -> str:
        """Return the text without any of the secrets."""
        return self._pattern.sub(MASK, text) if self._pattern is not None else text

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        forms = {form for value in self._values for form in _forms(value)}
        # The longest first: one secret may be part of another.
        each = [
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=lambda form: (-len(form), form))
        ]
        return re.compile("|".join(each)) if each else None


def _forms(value: str) -> Iterator[str]:
    yield value
    yield from (
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote(value),
        urllib.parse.quote_plus(value),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        value.replace("\\", "\\\\").replace("'", "\\'"),
    )
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE)


class Masking(logging.Formatter):
    """Formats as another formatter does, and takes the secrets out of what it wrote."""

    def __init__(self, secrets: Secrets, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._secrets = secrets
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without secrets."""
        return self._secrets.mask(self._inner.format(record))


def mask_logs(secrets: Secrets, logger: logging.Logger | None = None) -> None:
    """Let every handler that a logger has now, by default the root, write no secret."""
    for handler in (logger or logging.getLogger()).handlers:
        handler.setFormatter(Masking(secrets, handler.formatter))


def secrets_in_url(text: str) -> list[str]:
    """Return the passwords of the URLs in a text."""
    return _IN_URL.findall(text)


def shown_property(name: str, value: Any) -> Any:
    """Return a property's value for people."""
    if is_secret(name):
        return MASK
    if isinstance(value, str):
        return _IN_URL.sub(lambda found: found[0].replace(f":{found[1]}@", f":{MASK}@"), value)
    return value


class Unreadable(ValueError):  # noqa: N818
    """A file that should hold a secret cannot be read. Its text names the file and shows nothing of it."""


def read_secret(path: object) -> str:
    """Return what a file holds, without the newline at its end."""
    if not isinstance(path, str) or not path:
        raise Unreadable("'file' needs a path")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Unreadable(f"the file {path} cannot be read: {error.strerror}") from None
    except (UnicodeError, ValueError):
        raise Unreadable(f"the file {path} does not hold text in UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise Unreadable(f"the file {path} is empty")
    return text
