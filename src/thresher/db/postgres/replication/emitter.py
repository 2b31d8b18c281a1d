"""The function that writes an outbox's messages to the WAL: its state, its creation, and its keys."""

from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg

from thresher.db.log_emitter import LogEmitter, LogKey, emit_function, emitter_ddl, keys_table
from thresher.db.lsn import lsn_number
from thresher.db.names import TableName
from thresher.db.postgres.catalog import own_table_problems
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.refusal import SLOT_RIGHTS
from thresher.db.postgres.sessions import explained, placed
from thresher.db.problem import DatabaseLost
from thresher.db.statements import statement


class PostgresEmitter:
    """One outbox's function, over one connection in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName, within: TableName | None = None) -> None:
        """`within` is the outbox's name with its schema; without it, the session's search_path decides."""
        self._connection, self._outbox = connection, outbox
        self._within = within or outbox
        self._function, self._keys = emit_function(self._within), keys_table(self._within)

    def read(self) -> LogEmitter:
        """Return the function's state, and who may execute the server's own functions."""
        row = self._one(statement("log_emitter"), {"emit": self._function, "keys": self._keys})
        exists, definer, owner, executes, reads, readable, owner_emits, server_open, functions, user, keeper = row
        with explained(SLOT_RIGHTS):
            strangers = own_table_problems(self._connection, self._keys)
        if exists and keeper != owner:
            strangers = (*strangers, f"its owner {keeper} is not {owner}, who owns {self._function}")
        return LogEmitter(
            function=self._function,
            keys=self._keys,
            exists=exists,
            definer=definer,
            owner=owner,
            public_executes=executes,
            public_reads_keys=reads,
            keys_readable=readable,
            owner_emits=owner_emits,
            server_functions=tuple(functions or ()),
            server_open=bool(server_open),
            user=user,
            strangers=tuple(f"{self._keys} is not used: {each}" for each in strangers),
        )

    def create(self) -> bool:
        """Create the function, its table of keys and the first key, in one transaction; False if it exists."""
        if self.read().exists:
            return False
        (place,) = placed(self._connection, self._within)
        with explained(SLOT_RIGHTS), self._connection.transaction():
            OwnCursor(self._connection).execute(emitter_ddl(self._outbox, place.schema or "").encode())
        return True

    def elsewhere(self) -> list[str]:
        """Return the schemas that have keys or dead rows of an outbox of this name, if this outbox's has neither."""
        (place,) = placed(self._connection, self._within)
        names = [f"{place.table}_keys", f"{place.table}_dead"]
        with explained(SLOT_RIGHTS):
            found = OwnCursor(self._connection).execute(statement("log_emitter_elsewhere"), [names]).fetchall()
        schemas = [schema for (schema,) in found]
        return [] if place.schema in schemas else schemas

    def new_key(self) -> int:
        """Add a key, with which messages are sealed from now on; return its number."""
        return int(self._one(statement("log_key_create", keys=self._keys))[0])

    def keys(self) -> tuple[int, Mapping[int, LogKey]]:
        """Return the keys, and a position of the WAL: each message before it is sealed with one of them."""
        # In this order: a key that a message before the position was sealed with was committed before it.
        end = lsn_number(self._one(statement("tail_log_end"))[0])
        with explained(SLOT_RIGHTS):
            found = OwnCursor(self._connection).execute(statement("log_keys", keys=self._keys)).fetchall()
        return end, {id_: LogKey(inner, outer) for id_, inner, outer in found}

    def _one(self, query: LiteralString, values: Any = None) -> tuple[Any, ...]:
        with explained(SLOT_RIGHTS):
            row = OwnCursor(self._connection).execute(query, values).fetchone()
        if row is None:
            raise DatabaseLost("the database returned no row where one was expected")
        return row
