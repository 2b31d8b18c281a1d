"""The rights of three roles of Postgres, as statements: one may only relay, one only write, and one only operate.

They are enough for every setting of a relay, for a writer with receipts, and for an operator that lists, shows, puts
back and drops dead rows of a table. No role may create or change a table: the owner makes all of them, by the DDL that
is printed with these statements. A role needs `LOGIN` besides, and `USAGE` of the schema, which all have of `public`.
"""

from collections.abc import Iterator

from thresher.archive.manifests import BATCHES
from thresher.db import TableName
from thresher.db.names import quoted_name
from thresher.db.postgres.control import control_table
from thresher.db.postgres.topic_locks import locks_table
from thresher.db.shape import Shape
from thresher.election.lease import LEASES
from thresher.outbox.deimos_tables import topic_info

# What tells a row: a writer gets it back as a receipt, and a row that is put back is looked for by it.
_RECEIPT = {Shape.THRESHER: "id, create_time", Shape.GOHARVEST: "id, create_time", Shape.DEIMOS: "id, created_at"}


def relay_grants(outbox: TableName, shape: Shape, role: str, *, topic_lock: bool = False) -> Iterator[str]:
    """Give the statements that let a role relay, and do nothing else."""
    to = f"TO {quoted_name(role)};"
    lease = TableName(table=LEASES, schema=outbox.schema)
    kept = [outbox.companion("_dead"), control_table(outbox.schema).quoted(), lease.quoted()]
    yield from _usage(outbox, to)
    if topic_lock:
        kept.append(locks_table(outbox, shape))
        if shape is Shape.DEIMOS:
            # Deimos' own table of locks has a sequence; an identity column needs no right.
            yield f"GRANT USAGE ON SEQUENCE {topic_info(outbox).companion('_id_seq')} {to}"
    # UPDATE is for stamps and marks.
    yield f"GRANT SELECT, UPDATE, DELETE ON {outbox} {to}"
    if shape is Shape.THRESHER:
        kept.append(TableName(table=BATCHES, schema=outbox.schema).quoted())
        yield f"GRANT SELECT, INSERT ON {outbox.companion('_archive')} {to}"
    yield f"GRANT SELECT, INSERT, UPDATE ON {', '.join(kept)} {to}"


def writer_grants(outbox: TableName, shape: Shape, role: str) -> Iterator[str]:
    """Give the statements that let a role write to the outbox, and do nothing else: it cannot read a message."""
    to = f"TO {quoted_name(role)};"
    yield from _usage(outbox, to)
    yield f"GRANT INSERT, SELECT ({_RECEIPT[shape]}) ON {outbox} {to}"
    if shape is not Shape.THRESHER:
        # An identity column needs none.
        yield f"GRANT USAGE ON SEQUENCE {outbox.companion('_id_seq')} {to}"


def operator_grants(outbox: TableName, shape: Shape, role: str) -> Iterator[str]:
    """Give the statements that let a role look at dead rows, put them back and drop them, and do nothing else."""
    to = f"TO {quoted_name(role)};"
    yield from _usage(outbox, to)
    yield f"GRANT SELECT, DELETE ON {outbox.companion('_dead')} {to}"
    # DELETE is for a row that is in its table still, though it was set aside.
    yield f"GRANT INSERT, DELETE, SELECT ({_RECEIPT[shape]}) ON {outbox} {to}"


def _usage(outbox: TableName, to: str) -> Iterator[str]:
    if outbox.schema is not None:
        yield f"GRANT USAGE ON SCHEMA {quoted_name(outbox.schema)} {to}"
