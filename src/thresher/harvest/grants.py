"""GRANT statements for three Postgres roles: a relay, a writer, and an operator of dead rows.

The statements are enough for every setting of a relay, for a writer with receipts, and for an operator that lists,
shows, puts back and drops dead rows. No role may create or change a table: the owner creates all tables, with the DDL
that is printed with these statements. A role also needs `LOGIN`, and `USAGE` of the schema: all roles have that of
`public`.
"""

from collections.abc import Iterator

from thresher.archive.manifests import BATCHES
from thresher.db import TableName
from thresher.db.names import quoted_name
from thresher.db.postgres.control import control_table
from thresher.db.postgres.own_tables.lock_rows import lock_table
from thresher.db.postgres.topic_locks import locks_table
from thresher.db.shape import Shape
from thresher.election.lease import LEASES
from thresher.outbox.deimos_tables import topic_info

# The columns that identify a row: a writer gets them as a receipt, and `dead replay` looks for the row by them.
_RECEIPT = {Shape.THRESHER: "id, create_time", Shape.GOHARVEST: "id, create_time", Shape.DEIMOS: "id, created_at"}


def relay_grants(outbox: TableName, shape: Shape, role: str, *, topic_lock: bool = False) -> Iterator[str]:
    """Yield the statements that let a role relay, and nothing else."""
    to = f"TO {quoted_name(role)};"
    lease = TableName(table=LEASES, schema=outbox.schema)
    kept = [outbox.companion("_dead"), control_table(outbox.schema).quoted(), lease.quoted()]
    kept.append(lock_table(outbox.schema).quoted())
    yield from _usage(outbox, to)
    if topic_lock:
        kept.append(locks_table(outbox, shape))
        if shape is Shape.DEIMOS:
            # Deimos' own lock table has a sequence. An identity column needs no grant.
            yield f"GRANT USAGE ON SEQUENCE {topic_info(outbox).companion('_id_seq')} {to}"
    # UPDATE is for stamps and marks.
    yield f"GRANT SELECT, UPDATE, DELETE ON {outbox} {to}"
    if shape is Shape.THRESHER:
        kept.append(TableName(table=BATCHES, schema=outbox.schema).quoted())
        yield f"GRANT SELECT, INSERT ON {outbox.companion('_archive')} {to}"
    yield f"GRANT SELECT, INSERT, UPDATE ON {', '.join(kept)} {to}"


def writer_grants(outbox: TableName, shape: Shape, role: str) -> Iterator[str]:
    """Yield the statements that let a role write to the outbox, and nothing else: it cannot read a message."""
    to = f"TO {quoted_name(role)};"
    yield from _usage(outbox, to)
    yield f"GRANT INSERT, SELECT ({_RECEIPT[shape]}) ON {outbox} {to}"
    if shape is not Shape.THRESHER:
        # The identity column of our own table needs no grant.
        yield f"GRANT USAGE ON SEQUENCE {outbox.companion('_id_seq')} {to}"


def operator_grants(outbox: TableName, shape: Shape, role: str) -> Iterator[str]:
    """Yield the statements that let a role read dead rows, put them back and drop them, and nothing else."""
    to = f"TO {quoted_name(role)};"
    yield from _usage(outbox, to)
    yield f"GRANT SELECT, DELETE ON {outbox.companion('_dead')} {to}"
    # DELETE is for a dead row that is still in the outbox.
    yield f"GRANT INSERT, DELETE, SELECT ({_RECEIPT[shape]}) ON {outbox} {to}"


def _usage(outbox: TableName, to: str) -> Iterator[str]:
    if outbox.schema is not None:
        yield f"GRANT USAGE ON SCHEMA {quoted_name(outbox.schema)} {to}"
