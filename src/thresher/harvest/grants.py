"""The rights of four Postgres roles: a relay, a writer, a dispatcher, and an operator of dead rows.

1. A relay reads and removes the rows of its outbox, and sets its mark and the stamp: it changes no row of the outbox.
   It writes dead rows with any content: what an operator puts back is what the relay wrote. Of the tables that the
   relays of a schema share, policies give it the rows of its own name and outbox alone. Of these and of the dead rows
   it may update columns, not the table: so it cannot lock the table either.
2. A writer inserts messages, and reads its receipts: it chooses no id, stamp or mark.
3. A dispatcher reads rows and stamps them. It asks a function for the relay's mode.
4. An operator calls the functions of `thresher dead`, and nothing else.

No role may create or change a table: the owner creates all tables, with the DDL that is printed with these statements.
A role also needs `LOGIN`. Grants add up: a right that a role was given elsewhere stays.
"""

from collections.abc import Iterator

from thresher.archive.manifests import BATCHES
from thresher.db import TableName
from thresher.db.names import quoted_name
from thresher.db.postgres.control import control_table, modes_function
from thresher.db.postgres.own_tables.lock_rows import lock_table
from thresher.db.postgres.own_tables.wait_rows import wait_table
from thresher.db.postgres.rights.ddl import (
    block_ddl,
    functions_ddl,
    literal,
    owner_policy,
    policy_ddl,
    schema_usage,
    to_owner,
)
from thresher.db.postgres.rights.dead_functions import dead_functions
from thresher.db.postgres.topic_locks import locks_table, registering_lock
from thresher.db.shape import Shape
from thresher.delivery.names import tail_group
from thresher.election.lease import lease_grants
from thresher.outbox.deimos_tables import topic_info

# The columns that identify a row: a writer gets them as a receipt, and `dead replay` looks for the row by them.
_RECEIPT = {Shape.THRESHER: "id, create_time", Shape.GOHARVEST: "id, create_time", Shape.DEIMOS: "id, created_at"}
_MESSAGE = (
    "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, kafka_timestamp"
)
_TEXTS = "create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_RAILS = "topic, key, message, partition_key, created_at, updated_at"
# The columns that a writer sets, and those that a replay sets beside the id.
_WRITTEN = {Shape.THRESHER: _MESSAGE, Shape.GOHARVEST: _TEXTS, Shape.DEIMOS: _RAILS}
_REPLAYED = {**_WRITTEN, Shape.THRESHER: f"create_time, {_MESSAGE}"}
# What a relay renews of a dead row whose message became dead again. Never which row of the outbox it was.
_DEAD_CONTENT = {
    Shape.THRESHER: _MESSAGE,
    Shape.GOHARVEST: "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values",
    Shape.DEIMOS: "kafka_topic, kafka_key, kafka_value, partition_key",
}
_DEAD_REASON = "kind, reason, attempts, blocking, dead_time"
# The columns of shared tables that a relay changes: not the name's owner, and not the secret.
_CONTROL_INSERT = "name, outbox, outbox_id, system_id, term, mode, shards"
_CONTROL_UPDATE = "name, system_id, term, term_time, mode, shards, progress_topic_id, settled_on"
_WAITS_UPDATE = "topics, topic_seconds, ids, create_times, row_seconds, written"
_BATCH_UPDATE = "attempt, ids, create_times, versions, finish_time, row_count, first_id, last_id"


def relay_grants(outbox: TableName, shape: Shape, role: str, *, name: str, topic_lock: bool = False) -> Iterator[str]:
    """Yield the statements that let a role run the relay or tail of this name. The outbox's schema must be given."""
    to = f"TO {quoted_name(role)};"
    control = control_table(outbox.schema)
    of_outbox, of_name = f"outbox = {literal(outbox.quoted())}", f"name = {literal(name)}"
    yield from schema_usage(outbox.schema, role)
    yield f"GRANT SELECT, DELETE ON {outbox} {to}"
    if shape is Shape.DEIMOS:
        # Newer versions of Deimos make tables without the mark.
        yield block_ddl(
            "deimos_mark_grant", on=outbox.quoted(), role=quoted_name(role), quoted=literal(outbox.quoted())
        )
    else:
        marks = "dispatched_time, leader_id" if shape is Shape.THRESHER else "leader_id"
        yield f"GRANT UPDATE ({marks}) ON {outbox} {to}"
    renewed = f"{_DEAD_CONTENT[shape]}, {_DEAD_REASON}"
    yield f"GRANT SELECT, INSERT, UPDATE ({renewed}) ON {outbox.companion('_dead')} {to}"
    yield f"GRANT SELECT, INSERT ({_CONTROL_INSERT}), UPDATE ({_CONTROL_UPDATE}) ON {control} {to}"
    yield policy_ddl(control, name, role, using=of_outbox, check=f"{of_outbox} AND {of_name}")
    yield from lease_grants(outbox.schema, role, names=[name, tail_group(name)])
    locks = lock_table(outbox.schema)
    own_locks = f"name IN ({literal(registering_lock(outbox, shape))}, {literal(f'archive {outbox}')})"
    yield f"GRANT SELECT, INSERT, UPDATE (pid, started, role) ON {locks} {to}"
    yield policy_ddl(locks, name, role, using=own_locks, check=own_locks)
    waits = wait_table(outbox.schema)
    yield f"GRANT SELECT, INSERT, UPDATE ({_WAITS_UPDATE}) ON {waits} {to}"
    yield policy_ddl(waits, name, role, using=of_name, check=of_name)
    if shape is Shape.THRESHER:
        batches = TableName(table=BATCHES, schema=outbox.schema)
        yield f"GRANT SELECT, INSERT ON {outbox.companion('_archive')} {to}"
        yield f"GRANT SELECT, INSERT, UPDATE ({_BATCH_UPDATE}) ON {batches} {to}"
        yield policy_ddl(batches, name, role, using=of_outbox, check=of_outbox)
        # An archive compares the mark of its directory with the last one that any outbox recorded for it.
        yield policy_ddl(batches, f"{name} reads", role, using="true", command="SELECT")
    if topic_lock:
        yield f"GRANT SELECT, INSERT, UPDATE ON {locks_table(outbox, shape)} {to}"
        if shape is Shape.DEIMOS:
            # Deimos' own lock table has a sequence. An identity column needs no grant.
            yield f"GRANT USAGE ON SEQUENCE {topic_info(outbox).companion('_id_seq')} {to}"


def writer_grants(outbox: TableName, shape: Shape, role: str) -> Iterator[str]:
    """Yield the statements that let a role write to the outbox, and nothing else: it cannot read a message."""
    to = f"TO {quoted_name(role)};"
    yield from schema_usage(outbox.schema, role)
    yield f"GRANT SELECT ({_RECEIPT[shape]}) ON {outbox} {to}"
    if shape is Shape.DEIMOS:
        yield "-- Rails names every column in an INSERT, id too. For Thresher's writer alone, this would do:"
        yield f"-- GRANT INSERT ({_WRITTEN[shape]}) ON {outbox} {to}"
        yield f"GRANT INSERT ON {outbox} {to}"
    else:
        yield f"GRANT INSERT ({_WRITTEN[shape]}) ON {outbox} {to}"
    if shape is not Shape.THRESHER:
        # The identity column of our own table needs no grant.
        yield f"GRANT USAGE ON SEQUENCE {outbox.companion('_id_seq')} {to}"


def operator_grants(outbox: TableName, shape: Shape, role: str, *, owner: str | None) -> Iterator[str]:
    """Yield the functions of `thresher dead`, and the statements that let a role call them, and do nothing else.

    The functions belong to the role `owner`, which is made if it is missing: by default one for database and schema.
    """
    # DELETE is for a dead row that is still in the outbox.
    rights = [
        to_owner(f"GRANT SELECT, DELETE ON {outbox.companion('_dead')} TO "),
        to_owner(f"GRANT INSERT (id, {_REPLAYED[shape]}), DELETE, SELECT ({_RECEIPT[shape]}) ON {outbox} TO "),
    ]
    yield functions_ddl(dead_functions(outbox, shape), owner=owner, caller=role, rights=rights)
    yield from schema_usage(outbox.schema, role)


def dispatcher_grants(outbox: TableName, role: str, *, owner: str | None) -> Iterator[str]:
    """Yield the statements that let a role send the rows of receipts, and the function that tells it the relay's mode.

    The function belongs to the role `owner`, which is made if it is missing (by default one for database and schema),
    and sees the names and modes of all relays: of a row that a policy hides, a dispatcher would believe that no relay
    runs.
    """
    control = control_table(outbox.schema)
    modes = "modes are read by a function"
    rights = [to_owner(f"GRANT SELECT (name, outbox, mode) ON {control} TO "), *owner_policy(control, modes)]
    yield functions_ddl([modes_function(outbox)], owner=owner, caller=role, rights=rights)
    yield from schema_usage(outbox.schema, role)
    yield f"GRANT SELECT, UPDATE (dispatched_time) ON {outbox} TO {quoted_name(role)};"
