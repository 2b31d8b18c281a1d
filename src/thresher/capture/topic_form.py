"""The section of one topic in a capture's configuration. Every problem is reported with its key."""

from collections.abc import Iterator, Mapping
from typing import Any

from thresher.capture.rows.guard import GuardColumns
from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.rows.sources import is_of_key, source_of
from thresher.config.function_paths import is_function_path
from thresher.config.report import Problem, no_such_key
from thresher.core.errors import InvalidInput, shorten
from thresher.core.topic_name import is_topic_name
from thresher.db import TableName
from thresher.db.names import schema_within

KEYS = ("table", "schema", "key", "columns", "guard", "decoder", "handler")
_WITH_HANDLER = ("table", "schema", "key", "columns", "guard", "decoder")


def topic_problems(topic: str, given: object) -> list[Problem]:
    """Return the problems of a topic's section."""
    return list(_problems(topic, given))


def topic_mapping(topic: str, given: Mapping[str, Any]) -> TopicMapping:
    """Return the mapping of a section without problems."""
    if given.get("handler") is not None:
        return TopicMapping(topic=topic, handler=given["handler"])
    columns = _columns(given)
    return TopicMapping(
        topic=topic,
        table=TableName(table=given.get("table") or topic, schema=given.get("schema")),
        key=_key(given, columns),
        columns=columns,
        guard=GuardColumns(**(given.get("guard") or {})),
        decoder=given.get("decoder"),
    )


def _problems(topic: str, given: object) -> Iterator[Problem]:
    where = f"topics.{topic}"
    if not is_topic_name(topic):
        yield where, "1 to 249 of the characters a-z A-Z 0-9 . _ - are needed"
    if not isinstance(given, Mapping):
        yield where, f"keys with their values are needed: {', '.join(KEYS)}"
        return
    for name in given:
        if name not in KEYS:
            yield f"{where}.{name}", no_such_key(str(name), KEYS)
    for name in ("decoder", "handler"):
        path = given.get(name)
        if path is not None and not is_function_path(path):
            yield f"{where}.{name}", f"{shorten(path)} is not of the form package.module:function"
    if given.get("handler") is not None:
        for name in _WITH_HANDLER:
            if given.get(name) is not None:
                yield f"{where}.{name}", "a handler does this itself: leave the key out"
        return
    yield from _table_problems(where, topic, given)
    yield from _column_problems(where, given)


def _table_problems(where: str, topic: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    if why := schema_within("table", given.get("table"), given.get("schema")):
        yield f"{where}.table", why
    try:
        TableName(table=given.get("table") or topic, schema=given.get("schema"))
    except InvalidInput as error:
        yield f"{where}.table", str(error)
    guard = given.get("guard")
    if guard is None:
        return
    if not isinstance(guard, Mapping) or not all(isinstance(each, str) and each for each in guard.values()):
        yield f"{where}.guard", f"the names of columns are needed, for {', '.join(GuardColumns._fields)}"
        return
    unknown = [name for name in guard if name not in GuardColumns._fields]
    for name in unknown:
        yield f"{where}.guard.{name}", no_such_key(str(name), GuardColumns._fields)
    if not unknown and len(set(GuardColumns(**guard))) < len(GuardColumns._fields):
        yield f"{where}.guard", "three columns with different names are needed"


def _column_problems(where: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    found = given.get("columns")
    if not isinstance(found, Mapping | list) or not found or not all(isinstance(each, str) and each for each in found):
        yield f"{where}.columns", "the columns to write are needed, each with its field"
        return
    columns = _columns(given)
    for name, source in columns.items():
        if why := _wrong_source(source):
            yield f"{where}.columns.{name}", why
            return
    if not _is_key(given.get("key")):
        yield f"{where}.key", "the name of a column is needed, or a list of different ones"
        return
    key = _key(given, columns)
    if not key:
        yield f"{where}.key", "it is missing: which columns identify a row? Map one from $key, or name them"
    for name in key:
        if name not in columns:
            yield f"{where}.key", f"{shorten(name)} is none of the columns that are written"
    guards = GuardColumns(**given["guard"]) if _is_guard(given.get("guard")) else GuardColumns()
    for name in columns:
        if name in guards:
            yield f"{where}.columns.{name}", "it is a column of the guard"


def _wrong_source(source: object) -> str:
    if not isinstance(source, str):
        return f"a field's name is needed, not {shorten(source)}"
    try:
        source_of(source)
    except InvalidInput as error:
        return str(error)
    return ""


def _is_key(given: object) -> bool:
    if given is None or isinstance(given, str):
        return True
    return isinstance(given, list) and all(isinstance(each, str) for each in given) and len(set(given)) == len(given)


def _is_guard(given: object) -> bool:
    return isinstance(given, Mapping) and all(name in GuardColumns._fields for name in given)


def _columns(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the source of each column. In a list, each name is both column and field."""
    found = given["columns"]
    return dict(found) if isinstance(found, Mapping) else {name: name for name in found}


def _key(given: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return the key columns: the configured ones, or those whose source is the record's key."""
    found = given.get("key")
    if found is None:
        return tuple(name for name, source in columns.items() if is_of_key(str(source)))
    return (found,) if isinstance(found, str) else tuple(map(str, found))
