"""The rights of two Postgres roles: one that captures, and one that waits until a record is captured.

Policies give a role the rows of one capture, of the tables that all captures of a schema share.
"""

from collections.abc import Iterator, Sequence

from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.store.entity_table import RIGHTS
from thresher.capture.store.tables import CaptureTables
from thresher.db.names import quoted_name
from thresher.db.postgres.rights.ddl import literal, policy_ddl, schema_usage

# What a program that waits for a record reads: not the record.
_OFFSETS = "capture, kafka_topic, kafka_partition, topic_id, next_offset"
_DEAD = "capture, kafka_topic, topic_id, kafka_partition, kafka_offset, kind, reason"


def capture_grants(
    tables: CaptureTables, mappings: Sequence[TopicMapping], role: str, *, capture: str
) -> Iterator[str]:
    """Yield the statements that let a role run this capture, and mend it with the commands of an operator."""
    to = f"TO {quoted_name(role)};"
    yield from schema_usage(tables.schema, role)
    for mapping in mappings:
        if mapping.table is not None:
            yield from schema_usage(mapping.table.schema, role)
            yield f"GRANT {', '.join(RIGHTS)} ON {mapping.table} {to}"
    for table in tables.all:
        own = f"{'name' if table == tables.captures else 'capture'} = {literal(capture)}"
        yield f"GRANT {', '.join(RIGHTS)} ON {table} {to}"
        yield policy_ddl(table, capture, role, using=own, check=own)


def waiting_grants(tables: CaptureTables, role: str, *, capture: str) -> Iterator[str]:
    """Yield the statements that let a role wait until a record of this capture is captured, and read nothing else."""
    yield from schema_usage(tables.schema, role)
    for table, columns in ((tables.offsets, _OFFSETS), (tables.dead, _DEAD)):
        yield f"GRANT SELECT ({columns}) ON {table} TO {quoted_name(role)};"
        own = f"capture = {literal(capture)}"
        yield policy_ddl(table, f"{capture} is waited for", role, using=own, command="SELECT")
