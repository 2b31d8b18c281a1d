"""The secrets of a configuration: which values are secrets, how they are kept, and how texts are masked.

1. Secrets are connection strings, properties with a name such as `password` or `token`, and values that were read from
   a file.
2. Settings hold them as `Secret`: whatever prints, formats or pickles settings gets no content. `revealed` returns the
   content, and is called where a client or a connection is made. `carried` pickles it for a task's closure.
3. `Secrets.mask` is the second line, for texts of others, such as a driver's error that repeats a password. It finds a
   secret that is escaped, as in a URL, a connection string or JSON, and single lines of a long secret.
4. Logs pass through `Masking`, which masks the formatted line: message, traceback and fields.
"""

import io
import json
import logging
import pickle
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from thresher.core.errors import ThresherError

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


class SecretMasked(ThresherError):  # noqa: N818
    """A secret was pickled without its content, as for a log, and is now needed."""


class Secret:
    """A text that is not shown: `repr`, `str` and `format` return `shown`, and `json` refuses it. Immutable.

    It equals its content. A pickle has no content either, because handlers of logs pickle what records hold: see
    `carried`.
    """

    __slots__ = ("_content", "_shown")

    def __init__(self, content: str, *, shown: str = MASK) -> None:
        self._content: str | None = content
        self._shown = shown

    def reveal(self) -> str:
        """Return the content. Raises `SecretMasked` if the secret came out of a pickle without it."""
        if self._content is None:
            raise SecretMasked(
                "a secret was pickled, and pickles hold no secrets: give the settings to the other process in another "
                "way, or pickle them by thresher.core.secrets.carried"
            )
        return self._content

    def __repr__(self) -> str:
        return f"Secret({self._shown!r})"

    def __str__(self) -> str:
        return self._shown

    def __format__(self, spec: str) -> str:
        return format(self._shown, spec)

    def __bool__(self) -> bool:
        return self._content != ""

    def __eq__(self, other: object) -> bool:
        return self._content == (other._content if isinstance(other, Secret) else other)

    def __hash__(self) -> int:
        return hash(self._content)

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _: object) -> "Secret":
        return self

    def __reduce_ex__(self, _: object) -> tuple[Callable[..., "Secret"], tuple[str | None, str]]:
        return _kept, (None, self._shown)


def _kept(content: str | None, shown: str) -> Secret:
    secret = Secret("", shown=shown)
    secret._content = content
    return secret


# A secret, or the plain text that a caller has given instead.
SecretText: TypeAlias = Secret | str


def revealed(value: SecretText) -> str:
    """Return the content of a secret, and a text as it is: for the call that makes a client or a connection."""
    return value.reveal() if isinstance(value, Secret) else value


def revealed_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with the content of every secret: for the call that makes a client."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in properties.items()}


def kept_properties(properties: Any) -> Any:
    """Return properties whose secrets are `Secret`, nested ones too. Anything but a mapping is returned as it is."""
    if not isinstance(properties, Mapping):
        return properties
    return {name: _kept_property(str(name), value) for name, value in properties.items()}


def _kept_property(name: str, value: Any) -> Any:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return kept_properties(value)
    shown = shown_property(name, value)
    return value if shown == value else Secret(str(value), shown=shown)


class _Carrier(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (_kept, (obj.reveal(), str(obj))) if isinstance(obj, Secret) else NotImplemented


def carried(value: object) -> bytes:
    """Pickle a value with the contents of its secrets: for a task's closure, which Spark authenticates and encrypts."""
    stream = io.BytesIO()
    _Carrier(stream).dump(value)
    return stream.getvalue()


class Secrets:
    """The secret values of one configuration. Its `repr` shows none of them, and a pickle has none."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = frozenset(filter(None, values))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def __reduce__(self) -> tuple[type["Secrets"], tuple[()]]:
        return Secrets, ()

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
    if isinstance(value, Secret):
        return str(value)
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
