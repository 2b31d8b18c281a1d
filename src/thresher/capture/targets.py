"""Applies the records of a topic: to a table by its mapping, or by a handler. In the caller's transaction."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from thresher.capture.problem import HandlerEndedTransaction
from thresher.capture.record import HANDLER, CapturedRecord, Flaw, FlawedRecord
from thresher.capture.rows.guard import Change, rounds
from thresher.capture.rows.mapping import Mapper, TopicMapping
from thresher.capture.store.data_errors import is_databases_fault
from thresher.capture.store.entity_table import EntityTable, entity_table
from thresher.db.postgres.sessions import keep_to_own_path, use_path
from thresher.spark.worker.chain import resolve

Handler = Callable[[Connection[Any], Sequence[CapturedRecord]], object]


class HandlerFailed(Exception):  # noqa: N818 - a finding about records, never shown as an error
    """A handler has raised an error, or has left its transaction in a failed state."""

    def __init__(self, flaw: Flaw) -> None:
        """`flaw` is the reason for the dead table, if the handler was given a single record."""
        super().__init__(flaw)
        self.flaw = flaw


class Target(Protocol):
    """Applies records of one topic."""

    def prepared(self, records: Sequence[CapturedRecord]) -> "Target":
        """Return a target for these records. Work without the database is done here, before the transaction."""

    def apply(self, connection: Connection[Any], records: Sequence[CapturedRecord]) -> list[FlawedRecord]:
        """Apply records, in order within each partition. Return those that are known to be flawed.

        Raises `psycopg.Error` or `HandlerFailed` if some other record cannot be applied: the caller rolls back, and
        finds out which.
        """


class TableTarget:
    """Writes the newest record of each key to a table."""

    def __init__(
        self, mapper: Mapper, table: EntityTable, known: Mapping[tuple[int, int], Change | Flaw] | None = None
    ) -> None:
        """`known` holds the results of records that are mapped already, by partition and offset."""
        self._mapper, self._table, self._known = mapper, table, known or {}

    def prepared(self, records: Sequence[CapturedRecord]) -> Target:
        """Map the records."""
        known = {(record.partition, record.offset): self._mapper.map(record) for record in records}
        return TableTarget(self._mapper, self._table, known)

    def apply(self, connection: Connection[Any], records: Sequence[CapturedRecord]) -> list[FlawedRecord]:
        """Write and delete rows. A flawed record is skipped."""
        flawed, changes = [], []
        for record in records:
            mapped = self._known.get((record.partition, record.offset)) or self._mapper.map(record)
            if isinstance(mapped, Flaw):
                flawed.append(FlawedRecord(record=record, flaw=mapped))
            else:
                changes.append(mapped)
        deletes = []
        for some in rounds(changes):
            if upserts := [each for each in some if each.values is not None]:
                self._table.write(connection, upserts)
            deletes += [each for each in some if each.values is None]
        if deletes:
            # Deletes come last: the guard of a written row shows whether a tombstone of another partition is later. A
            # deleted row has no guard.
            self._table.remove(connection, deletes)
        return flawed


class HandlerTarget:
    """Passes records to a user's function, which must neither commit nor roll back."""

    def __init__(
        self,
        handler: Handler,
        running: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
        path: str | None = None,
    ) -> None:
        """`running` is entered while the handler runs, and `path` is then the search_path."""
        self._handler, self._running, self._path = handler, running, path

    def prepared(self, records: Sequence[CapturedRecord]) -> Target:  # noqa: ARG002 - it does all in the transaction
        """Nothing to prepare."""
        return self

    def apply(self, connection: Connection[Any], records: Sequence[CapturedRecord]) -> list[FlawedRecord]:
        """Call the handler with all records. Raises `HandlerEndedTransaction` if it has committed or rolled back."""
        transaction = _transaction(connection)
        try:
            with self._running, _on_path(connection, self._path):
                answer = self._handler(connection, records)
        except psycopg.Error as error:
            if connection.closed or is_databases_fault(error):
                raise
            raise HandlerFailed(Flaw.of(HANDLER, error)) from error
        except Exception as error:
            raise HandlerFailed(Flaw.of(HANDLER, error)) from error
        if inspect.isawaitable(answer):
            raise _failed("the handler returned an awaitable: it must not be an async function")
        if connection.info.transaction_status == TransactionStatus.INERROR:
            raise _failed("the handler caught a database error and returned, but the transaction has failed")
        if _transaction(connection) != transaction:
            raise HandlerEndedTransaction(
                f"the handler of {records[0].topic} has ended the transaction of its batch, so that its records and "
                "the stored offsets are not committed together: it must neither commit nor roll back. Check which of "
                f"its records from offset {records[0].offset} of partition {records[0].partition} on took effect"
            )
        return []


def targets_of(
    connection: Connection[Any],
    mappings: Sequence[TopicMapping],
    *,
    running: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
    again: bool = False,
    handlers_path: str | None = None,
) -> Mapping[str, Target]:
    """Return the target of each topic. Raises `CaptureRefused`, or `StepUnusable` for a wrong import path."""
    return {each.topic: _target(connection, each, running, again, handlers_path) for each in mappings}


def mapper_of(mapping: TopicMapping, table: EntityTable) -> Mapper:
    """Return the mapper of a topic's records to rows of its table."""
    decoder = None if mapping.decoder is None else resolve(mapping.decoder, arguments=1)
    return Mapper(mapping, arrays=table.arrays, json=table.json, decoder=decoder)


def require_functions(mappings: Sequence[TopicMapping]) -> None:
    """Import every handler and decoder. Raises `StepUnusable`."""
    for mapping in mappings:
        if mapping.handler is not None:
            resolve(mapping.handler, arguments=2)
        if mapping.decoder is not None:
            resolve(mapping.decoder, arguments=1)


def _target(
    connection: Connection[Any],
    mapping: TopicMapping,
    running: AbstractContextManager[Any],
    again: bool,
    handlers_path: str | None,
) -> Target:
    if mapping.handler is not None:
        return HandlerTarget(resolve(mapping.handler, arguments=2), running, handlers_path)
    table = entity_table(connection, mapping, again=again)
    return TableTarget(mapper_of(mapping, table), table)


@contextmanager
def _on_path(connection: Connection[Any], path: str | None) -> Iterator[None]:
    """Give a handler the search_path that its session would have without us. A roll-back restores ours too."""
    if path is None:
        yield
        return
    use_path(connection, path)
    yield
    if connection.info.transaction_status == TransactionStatus.INTRANS:
        keep_to_own_path(connection)


def _failed(why: str) -> HandlerFailed:
    return HandlerFailed(Flaw(kind=HANDLER, reason=why))


def _transaction(connection: Connection[Any]) -> object:
    # Since the stored offsets are locked, the transaction has an id. A later transaction has another id, or none.
    return connection.execute("SELECT pg_catalog.pg_current_xact_id_if_assigned()::text").fetchone()
