"""The secrets of a configuration: which values are secrets, and how texts are masked.

1. Secrets are passwords in connection strings, properties with a name such as `password` or `token`, and values that
   were read from a file.
2. `Secrets.mask` replaces every secret in a text. It finds a secret that is escaped, as in a URL, a connection string
   or JSON, and single lines of a long secret.
3. Logs pass through `Masking`, which masks the formatted line: message, traceback and fields.
"""

import json
import logging
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

MASK = "***"
# Properties of Kafka's clients and of Spark. A token endpoint's URL is no secret.
_NAMES = re.compile(
    r"passw|passphrase|secret|credential(?!s\.client\.id)|jaas|token(?!\.endpoint)|access[._-]?key|private[._-]?key(?!\.file)"
    r"|ssl[._]key([._]pem)?$|oauthbearer\.config|oauthbearer\.extensions|user[._]?info",
    re.IGNORECASE,
)
# user:password@ in a URL of any kind.
_IN_URL = re.compile(r"://[^/?#\s:@]*:([^/?#\s]*)@")
# A shorter secret is masked only as a whole word, because it is part of many words.
_SHORT = 4
# Each line of a secret, such as a key in PEM, is a secret too if it has at least this length.
_LINE = 8


def is_secret(name: str) -> bool:
    """Whether the value of a property must not be shown."""
    return _NAMES.search(name) is not None


class Secrets:
    """The secret values of one configuration. Its `repr` shows none of them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = frozenset(filter(None, values))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def mask(self, text: str) -> str:
        """Return the text with `***` in place of each secret."""
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
    """Formats with another formatter, and masks the secrets in its output."""

    def __init__(self, secrets: Secrets, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._secrets = secrets
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record with its secrets masked."""
        return self._secrets.mask(self._inner.format(record))


def mask_logs(secrets: Secrets, logger: logging.Logger | None = None) -> None:
    """Mask secrets in every handler that the logger, by default the root, has now."""
    for handler in (logger or logging.getLogger()).handlers:
        handler.setFormatter(Masking(secrets, handler.formatter))


def secrets_in_url(text: str) -> list[str]:
    """Return the passwords of the URLs in a text."""
    return _IN_URL.findall(text)


def shown_property(name: str, value: Any) -> Any:
    """Return a property's value with secrets masked, for display."""
    if is_secret(name):
        return MASK
    if isinstance(value, Mapping):
        return {each: shown_property(str(each), content) for each, content in value.items()}
    if isinstance(value, str):
        return _IN_URL.sub(lambda found: found[0].replace(f":{found[1]}@", f":{MASK}@"), value)
    return value


class Unreadable(ValueError):  # noqa: N818
    """A file that should hold a secret cannot be read. The message names the file and shows no content."""


def read_secret(path: object) -> str:
    """Return the content of a file without the newline at its end. Raises `Unreadable`."""
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
