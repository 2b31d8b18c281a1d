"""A relation as a database's catalog describes it: the values that a check of an outbox reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as the catalog has it. If `generated` is set, `default` is the column's formula."""

    type: str
    not_null: bool = False
    default: str | None = None
    identity: bool = False
    generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A usable index: its columns in order (None for an expression) and a partial index's predicate."""

    columns: tuple[str | None, ...]
    unique: bool = False
    predicate: str | None = None
    # Whether uniqueness is checked with each row. A deferrable index is not, so ON CONFLICT cannot use it.
    immediate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A sequence that ids are drawn from."""

    name: str
    cache: int = 1
    increment: int = 1
    cycle: bool = False
    maximum: int = LARGEST_ID
    logged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Everything that a check needs, read at once."""

    kind: str = "r"
    persistence: str = "p"
    row_security: bool = False
    columns: Mapping[str, Column] = field(default_factory=dict)
    indexes: tuple[Index, ...] = ()
    sequences: tuple[Sequence, ...] = ()
    options: tuple[str, ...] = ()
    has_children: bool = False
    rules: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    referring: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    # What strangers could run with the rights of whoever uses the table.
    strangers: tuple[str, ...] = ()
    # The encoding of the database.
    encoding: str = "UTF8"
