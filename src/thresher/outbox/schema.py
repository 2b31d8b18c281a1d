"""The outbox table: its DDL, and whether the guarantees hold on an existing table.

A check reads the catalog, decides by pure functions, and lists every difference. `breaks` means that messages would be
lost, reordered or refused. `differs` means that the table works, but is not as we would create it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

from thresher.core.errors import ThresherError
from thresher.db import TableName, statement
from thresher.db.catalog import LARGEST_ID, Column, Relation, Sequence
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import own_path, placed
from thresher.db.shape import Shape
from thresher.outbox.deimos_tables import (
    ADDED,
    FEWEST_CHARACTERS,
    MARK,
    MESSAGES,
    NEEDED_BY,
    TOKEN,
    TOPIC_INFO,
    topic_info,
)

_RELATION_KINDS = {
    "p": "partitioned, which is not supported",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "c": "a composite type",
}


class SchemaRefused(ThresherError):  # noqa: N818
    """The table cannot be created or must not be used; the message lists every reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference: its severity, its subject, and what was found and what is needed."""

    severity: Literal["breaks", "differs"]
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.subject}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of a check."""

    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether the guarantees hold on this table."""
        return not any(finding.severity == "breaks" for finding in self.findings)


_TIME = "timestamp with time zone"
_BUCKET_FORMULA = (
    "CASE WHEN (kafka_key IS NULL) THEN ((id & (63)::bigint))::smallint "
    "ELSE ((get_byte(sha256(kafka_key), 0) & 63))::smallint END"
)
EXPECTED_COLUMNS: dict[Shape, dict[str, Column]] = {
    Shape.THRESHER: {
        "id": Column(type="bigint", not_null=True, identity=True),
        "create_time": Column(type=_TIME, not_null=True, default="clock_timestamp()"),
        "kafka_topic": Column(type="character varying(249)", not_null=True),
        "kafka_key": Column(type="bytea"),
        "kafka_value": Column(type="bytea"),
        "kafka_header_keys": Column(type="text[]", not_null=True, default="'{}'::text[]"),
        "kafka_header_values": Column(type="bytea[]", not_null=True, default="'{}'::bytea[]"),
        "kafka_partition": Column(type="integer"),
        "kafka_timestamp": Column(type=_TIME),
        "dispatched_time": Column(type=_TIME),
        "leader_id": Column(type="uuid"),
        "bucket": Column(type="smallint", not_null=True, generated=True, default=_BUCKET_FORMULA),
    },
    Shape.GOHARVEST: {
        "id": Column(type="bigint", not_null=True, identity=True),
        "create_time": Column(type=_TIME, not_null=True),
        "kafka_topic": Column(type="character varying(249)", not_null=True),
        "kafka_key": Column(type="character varying(100)", not_null=True),
        "kafka_value": Column(type="character varying(10000)"),
        "kafka_header_keys": Column(type="text[]", not_null=True),
        "kafka_header_values": Column(type="text[]", not_null=True),
        "leader_id": Column(type="uuid"),
    },
    Shape.DEIMOS: MESSAGES,
}
PENDING = "(dispatched_time IS NULL)"
_CLOCKS = {"clock_timestamp()", "now()", "CURRENT_TIMESTAMP", "statement_timestamp()", "transaction_timestamp()"}
_NEXT_ID = re.compile(r"nextval\('.*'::regclass\)")


def ddl(name: TableName, shape: Shape = Shape.THRESHER) -> LiteralString:
    """Return the statements that create the table; in Deimos' shape, the table of topic locks too."""
    return "\n".join(text for _, text in _tables(name, shape))


def create_schema(connection: Connection[Any], name: TableName, shape: Shape = Shape.THRESHER) -> bool:
    """Create the table in the caller's transaction; False if a usable table exists already.

    In Deimos' shape the table of topic locks is created too, if it is missing.
    Raises `SchemaRefused` if something else has the name, or if an existing table breaks the guarantees.
    """
    (place,) = placed(connection, name)
    made = [_create(connection, table, text) for table, text in _tables(place, shape)]
    if not all(made):
        check = check_schema(connection, name, shape)
        if not check.usable:
            raise SchemaRefused(f"{name} exists and cannot serve as an outbox:\n" + "\n".join(map(str, check.findings)))
    return made[0]


def _tables(name: TableName, shape: Shape) -> list[tuple[TableName, LiteralString]]:
    """Return the tables of a shape, the outbox first, each with the statements that create it."""
    tables = [(name, statement(f"{shape.prefix}_create", name))]
    if shape is Shape.DEIMOS:
        info = topic_info(name)
        tables.append((info, statement("deimos_topic_info_create", info)))
    return tables


def _create(connection: Connection[Any], name: TableName, text: LiteralString) -> bool:
    """Create a table; False if it exists."""
    if read_relation(connection, name) is None:
        try:
            # A savepoint: two applications may start at once, and the second goes on with the first one's table.
            with connection.transaction(), own_path(connection):
                OwnCursor(connection).execute(text)
        except (DuplicateTable, DuplicateObject, UniqueViolation) as error:
            # In a race, the catalog's own indexes report an existing table by the last two errors.
            if read_relation(connection, name) is None:
                raise SchemaRefused(
                    f"{name} cannot be created ({str(error).strip()}) and is not visible: a type has that name, or the "
                    "table was created after this transaction took its snapshot"
                ) from error
        else:
            return True
    return False


def check_schema(connection: Connection[Any], name: TableName, shape: Shape = Shape.THRESHER) -> Check:
    """Return the differences between the table and its shape, and whether the guarantees hold on it."""
    check = check_relation(read_relation(connection, name), name, shape)
    if shape is Shape.DEIMOS:
        info = topic_info(name)
        found = tuple(judge_topic_info(read_relation(connection, info), info))
        check = Check(findings=check.findings + found)
    return check


def check_relation(relation: Relation | None, name: TableName, shape: Shape) -> Check:
    """Check a table as the catalog describes it; `relation` is None if there is no such table."""
    if relation is None:
        hint = f" (one name with a dot in it: {name.table!r}; give schema and table apart)" if "." in name.table else ""
        return Check(findings=(_breaks(str(name), f"no such table{hint}"),))
    return Check(findings=tuple(judge(relation, shape, name)))


def judge(relation: Relation, shape: Shape, name: TableName) -> Iterator[Finding]:
    """Yield what breaks the guarantees on a relation, and what merely differs."""
    if relation.kind != "r":
        kind = _RELATION_KINDS.get(relation.kind, "something else")
        yield _breaks("table", f"it is {kind}; a plain table is needed")
        return
    if relation.persistence == "u":
        yield _breaks("table", "it is UNLOGGED: a crash of the database empties it")
    if relation.persistence == "t":
        yield _breaks("table", "it is TEMPORARY: no relay can see it")
    if relation.row_security:
        yield _breaks("table", "row level security is on: rows that a policy hides from the relay are never sent")
    if relation.encoding == "SQL_ASCII":
        yield _breaks("database", "its encoding is SQL_ASCII: it may hold text that cannot be decoded; UTF8 is needed")
    yield from _judge_surroundings(relation)
    yield from _judge_columns(relation, name, EXPECTED_COLUMNS[shape], MARK if shape is Shape.DEIMOS else {})
    yield from _judge_ids(relation)
    yield from _judge_indexes(relation, shape)
    if not any(option.startswith("autovacuum_vacuum_scale_factor=") for option in relation.options):
        yield _differs("table", "no autovacuum settings of its own: a table of short-lived rows bloats on the defaults")


def judge_topic_info(relation: Relation | None, name: TableName) -> Iterator[Finding]:
    """Yield what is wrong with Deimos' table of topic locks."""
    if relation is None:
        yield _breaks(str(name), "no such table; 'thresher schema create' makes it")
        return
    if relation.kind != "r":
        yield _breaks(str(name), f"it is {_RELATION_KINDS.get(relation.kind, 'something else')}; a table is needed")
        return
    for stranger in relation.strangers:
        yield _breaks(str(name), stranger)
    for finding in _judge_columns(relation, name, TOPIC_INFO, TOKEN):
        yield replace(finding, subject=f"{name}, {finding.subject}")
    if not any(index.unique and index.columns == ("topic",) and index.predicate is None for index in relation.indexes):
        yield _breaks(f"{name}, index", "none that is unique on (topic): a topic could have two locks")


def _judge_surroundings(relation: Relation) -> Iterator[Finding]:
    for stranger in relation.strangers:
        yield _breaks("table", stranger)
    if relation.has_children:
        yield _breaks("table", "other tables inherit from it: an id could be there twice")
    for rule in relation.rules:
        yield _breaks(f"rule {rule}", "a rule can drop or rewrite inserts and deletes")
    for table in relation.referring:
        yield _breaks(f"foreign key of {table}", "rows that are referred to cannot be removed once they are sent")
    for trigger in relation.triggers:
        yield _differs(f"trigger {trigger}", "make sure that it neither drops rows nor changes their ids")
    for constraint in relation.constraints:
        yield _differs(f"constraint {constraint}", "messages that it refuses fail the application's transaction")


def _judge_columns(
    relation: Relation, table: TableName, expected: Mapping[str, Column], optional: Mapping[str, Column]
) -> Iterator[Finding]:
    for name, wanted in {**expected, **optional}.items():
        found = relation.columns.get(name)
        how = f": ALTER TABLE {table.quoted()} {ADDED[name]};" if name in ADDED else ""
        if found is None and name in optional:
            yield _differs(f"column {name}", f"missing; {NEEDED_BY[name]}{how}")
        elif found is None:
            yield _breaks(f"column {name}", f"missing; it should be {wanted.type}{how}")
        else:
            yield from _judge_type(name, found, wanted)
            yield from _judge_nulls(name, found, wanted)
            yield from _judge_default(name, found, wanted)
    for name, found in relation.columns.items():
        if name not in {*expected, *optional} and found.not_null and found.default is None and not found.identity:
            yield _breaks(f"column {name}", "an extra column that is NOT NULL without a default: no insert succeeds")


def _judge_type(name: str, found: Column, wanted: Column) -> Iterator[Finding]:
    # The precision of a timestamp column does not matter: a stored time is only compared with itself.
    if re.sub(r"^timestamp\(\d\)", "timestamp", found.type) == wanted.type:
        return
    detail = f"its type is {found.type}, it should be {wanted.type}"
    here, there = _text_length(found.type), _text_length(wanted.type)
    if there == math.inf:
        there = FEWEST_CHARACTERS.get(name, there)
    # Any text type works for the writer and the relay, as long as every admitted message fits.
    if here is not None and there is not None and here >= there:
        yield _differs(f"column {name}", detail)
    else:
        yield _breaks(f"column {name}", detail)


def _judge_nulls(name: str, found: Column, wanted: Column) -> Iterator[Finding]:
    if name == "updated_at":
        # Every writer sets it, and nobody reads it.
        return
    if wanted.not_null and not found.not_null:
        yield _breaks(f"column {name}", "it allows NULL and must not")
    if found.not_null and not wanted.not_null:
        yield _breaks(f"column {name}", "it is NOT NULL, but messages without it exist")


def _judge_default(name: str, found: Column, wanted: Column) -> Iterator[Finding]:
    if wanted.generated and not found.generated:
        yield _breaks(f"column {name}", "it must be GENERATED ALWAYS AS … STORED, or writers will leave it empty")
    elif found.generated and not wanted.generated:
        yield _breaks(f"column {name}", "it is a generated column, so nothing can be written to it")
    elif wanted.generated and _plain(found.default) != _plain(wanted.default):
        yield _breaks(f"column {name}", f"its formula is {found.default}, it should be {wanted.default}")
    elif wanted.default is not None and found.default is None:
        # Our writer relies on the default of these columns. Other writers may rely on that of the headers.
        found_none = f"no default; it should be {wanted.default}"
        ours = name in {"create_time", *TOPIC_INFO, *TOKEN}
        yield _breaks(f"column {name}", found_none) if ours else _differs(f"column {name}", found_none)
    elif name == "dispatched_time" and found.default is not None and not _plain(found.default).startswith("null"):
        yield _breaks(
            f"column {name}", f"its default {found.default} makes every new row one that was sent; DROP DEFAULT"
        )
    elif name == "create_time" and wanted.default is not None and found.default not in _CLOCKS:
        # The create time distinguishes a row from another with a reused id.
        yield _breaks(f"column {name}", f"its default {found.default} is not the clock; it should be {wanted.default}")


def _judge_ids(relation: Relation) -> Iterator[Finding]:
    identity = relation.columns.get("id")
    if identity is None:
        return
    if not identity.identity and identity.default is None:
        yield _breaks("column id", "no default: it should be an identity column or draw from a sequence")
    elif not relation.sequences or not (identity.identity or _NEXT_ID.fullmatch(identity.default or "")):
        detail = f"its default {identity.default} is not the next of a sequence, so ids do not follow the inserts"
        yield _breaks("column id", detail)
    for sequence in relation.sequences:
        yield from _judge_sequence(sequence)


def _judge_sequence(sequence: Sequence) -> Iterator[Finding]:
    subject = f"sequence {sequence.name}"
    if sequence.cache > 1:
        yield _breaks(
            subject,
            f"CACHE {sequence.cache}: each session hands out ids from its own block, so a later insert gets a "
            "lower id and overtakes an earlier one; ALTER SEQUENCE … CACHE 1",
        )
    if sequence.increment < 1:
        yield _breaks(subject, f"INCREMENT {sequence.increment}: later rows get lower ids and overtake earlier ones")
    if sequence.increment > 1:
        yield _breaks(
            subject,
            f"INCREMENT {sequence.increment}: it leaves ids to other sequences, from which a later row may get a "
            "lower id and overtake an earlier one; ALTER SEQUENCE … INCREMENT 1",
        )
    if sequence.cycle:
        yield _breaks(subject, "CYCLE: after its end later rows get lower ids and overtake earlier ones")
    if sequence.maximum < LARGEST_ID:
        yield _breaks(subject, f"it ends at {sequence.maximum}, and inserts with it; ALTER SEQUENCE … AS bigint")
    if not sequence.logged:
        yield _breaks(subject, "it is UNLOGGED: after a crash of the database it starts over")


def _judge_indexes(relation: Relation, shape: Shape) -> Iterator[Finding]:
    if not any(index.unique and index.columns == ("id",) and index.predicate is None for index in relation.indexes):
        yield _breaks("column id", "no primary key or unique index on it alone: two rows could share an id")
    for index in relation.indexes:
        if index.unique and "id" not in index.columns:
            columns = ", ".join(column or "an expression" for column in index.columns)
            yield _breaks("index", f"a unique one on ({columns}) refuses messages with equal values")
    if shape is Shape.THRESHER:
        fitting = [index for index in relation.indexes if index.columns[:2] == ("bucket", "id")]
        if not any(index.predicate in {None, PENDING} for index in fitting):
            yield _breaks("index", "none on (bucket, id) for rows still to be sent: every poll would scan the table")
        elif all(index.predicate is None for index in fitting):
            yield _differs(
                "index",
                "(bucket, id) holds dispatched rows too; WHERE dispatched_time IS NULL is smaller",
            )


def _breaks(subject: str, detail: str) -> Finding:
    return Finding(severity="breaks", subject=subject, detail=detail)


def _differs(subject: str, detail: str) -> Finding:
    return Finding(severity="differs", subject=subject, detail=detail)


def _text_length(type_: str) -> float | None:
    """Return how many characters a text type holds; None for other types."""
    if type_ in {"text", "character varying"}:
        return math.inf
    match = re.fullmatch(r"character varying\((\d+)\)", type_)
    return int(match.group(1)) if match else None


def _plain(formula: str | None) -> str:
    """Return a formula without spaces and brackets, which Postgres versions print differently."""
    return re.sub(r"[\s()]", "", formula or "").lower()
