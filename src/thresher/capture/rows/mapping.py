"""Maps records to changes of rows: topic to table, key and fields to columns, tombstone to delete. Pure.

1. A record becomes one `Change`, or a `Flaw` if its key or value does not fit the mapping. A bad record never raises an
   error: that would stop all other records, each time it is read.
2. Values are texts. The database casts each to the type of its column, and refuses those that do not fit.
3. A decoder, if configured, returns the fields instead of JSON. If it returns None, the record is a tombstone.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.capture.record import MALFORMED, NO_KEY, CapturedRecord, Flaw
from thresher.capture.rows.column_text import array_text, column_text, json_column_text
from thresher.capture.rows.guard import Change, Guard, GuardColumns
from thresher.capture.rows.sources import Malformed, decoded, is_of_json, needs_fields, source_of
from thresher.db import TableName

Decoder = Callable[[CapturedRecord], Mapping[str, Any] | None]
_NO_FIELDS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMapping:
    """How the records of one topic are applied: to rows of a table, or by a handler."""

    topic: str
    # None with a handler.
    table: TableName | None = None
    # The columns that identify a row: a part of `columns`.
    key: tuple[str, ...] = ()
    # The source of each column: see `sources`.
    columns: Mapping[str, str] = field(default_factory=dict)
    guard: GuardColumns = field(default_factory=GuardColumns)
    # Import paths of functions.
    decoder: str | None = None
    handler: str | None = None


class Mapper:
    """Maps the records of one topic. `arrays` and `json` are the columns of these types in the database."""

    def __init__(
        self,
        mapping: TopicMapping,
        *,
        arrays: Collection[str] = (),
        json: Collection[str] = (),
        decoder: Decoder | None = None,
    ) -> None:
        self._decoder = decoder
        self._reads_fields = decoder is not None or any(map(needs_fields, mapping.columns.values()))
        self._columns = [
            (source_of(source), _text_of(name in arrays, name in json and is_of_json(source)))
            for name, source in mapping.columns.items()
        ]
        self._names = tuple(mapping.columns)
        places = {name: place for place, name in enumerate(mapping.columns)}
        self._key_places = tuple(places[name] for name in mapping.key)

    def map(self, record: CapturedRecord) -> Change | Flaw:
        """Return the change of a record, or its flaw."""
        try:
            fields = self._fields(record)
            guard = Guard(record.partition, record.offset, record.timestamp_ms)
            if fields is None:
                return Change(self._key_of_tombstone(record), None, guard)
            values = tuple([text(source(record, fields)) for source, text in self._columns])
        except Malformed as error:
            return Flaw(kind=MALFORMED, reason=str(error))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - nesting, digits, a decoder's values: the fault of one record
            return Flaw.of(MALFORMED, error, "it cannot be mapped: ")
        key = tuple([values[place] for place in self._key_places])
        if None in key:
            return Flaw(kind=NO_KEY, reason=f"it has no value for the key column {self._missing(key)}")
        return Change(key, values, guard)  # type: ignore[arg-type]

    def _fields(self, record: CapturedRecord) -> Mapping[str, Any] | None:
        """Return the fields of the value; None for a tombstone."""
        if record.value is None:
            return None
        if not self._reads_fields:
            return _NO_FIELDS
        if self._decoder is None:
            return decoded(record.value, "value")
        try:
            found = self._decoder(record)
        except Exception as error:
            raise Malformed(Flaw.of(MALFORMED, error, "the decoder failed: ").reason) from error
        if found is not None and not isinstance(found, Mapping):
            raise Malformed(f"the decoder returned {type(found).__name__}, and not a mapping of fields")
        return found

    def _key_of_tombstone(self, record: CapturedRecord) -> tuple[bytes, ...]:
        found = []
        for place in self._key_places:
            source, text = self._columns[place]
            found.append(text(source(record, _NO_FIELDS)))
        if None in found:
            raise Malformed(
                f"a tombstone has no value for the key column {self._missing(found)}: map it from the record's key"
            )
        return tuple(found)  # type: ignore[arg-type]

    def _missing(self, key: Collection[bytes | None]) -> str:
        names = (self._names[place] for place in self._key_places)
        return ", ".join(name for name, value in zip(names, key, strict=True) if value is None)


def _text_of(array: bool, json: bool) -> Callable[[Any], bytes | None]:
    if array:
        return array_text
    return json_column_text if json else column_text
