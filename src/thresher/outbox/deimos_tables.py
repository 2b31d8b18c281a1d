"""Deimos' tables as its Rails migrations create them: the columns that a check expects, and how to add missing ones.

`kafka_messages` is the outbox; it may have another name. `kafka_topic_info` is in the same schema. It is for topic
locks only: a relay without topic locks does not use it.
"""

from thresher.db import TableName
from thresher.db.catalog import Column

_TIME = "timestamp without time zone"
_NOW = "DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')"

MESSAGES: dict[str, Column] = {
    "id": Column(type="bigint", not_null=True, identity=True),
    "topic": Column(type="character varying", not_null=True),
    "message": Column(type="bytea"),
    "key": Column(type="bytea"),
    "partition_key": Column(type="character varying"),
    "created_at": Column(type=_TIME, not_null=True),
    "updated_at": Column(type=_TIME, not_null=True),
}
# Columns that not every relay needs, with the relays that do. Deimos' migrations create tables without them.
MARK: dict[str, Column] = {"session_id": Column(type="character varying")}
TOKEN: dict[str, Column] = {"token": Column(type="bigint", not_null=True, default="0")}
NEEDED_BY = {"session_id": "'at-least-once' and topic locks need it", "token": "topic locks need it"}
TOPIC_INFO: dict[str, Column] = {
    "topic": Column(type="character varying", not_null=True),
    "locked_by": Column(type="character varying"),
    "locked_at": Column(type=_TIME),
    "error": Column(type="boolean", not_null=True, default="false"),
    "retries": Column(type="integer", not_null=True, default="0"),
    "last_processed_at": Column(type=_TIME),
}
# The shortest limit that is enough, where Rails may have set one: for example for a topic's name or an id.
FEWEST_CHARACTERS = {"topic": 249, "session_id": 36, "locked_by": 36, "partition_key": 1}
# The DDL that adds a missing column.
ADDED = {
    "created_at": f"ADD COLUMN created_at TIMESTAMP NOT NULL {_NOW}",
    "updated_at": f"ADD COLUMN updated_at TIMESTAMP NOT NULL {_NOW}",
    "partition_key": "ADD COLUMN partition_key VARCHAR",
    "session_id": "ADD COLUMN session_id VARCHAR",
    "locked_by": "ADD COLUMN locked_by VARCHAR",
    "locked_at": "ADD COLUMN locked_at TIMESTAMP",
    "error": "ADD COLUMN error BOOLEAN NOT NULL DEFAULT false",
    "retries": "ADD COLUMN retries INTEGER NOT NULL DEFAULT 0",
    "last_processed_at": "ADD COLUMN last_processed_at TIMESTAMP",
    "token": "ADD COLUMN token BIGINT NOT NULL DEFAULT 0",
}


def topic_info(outbox: TableName) -> TableName:
    """Return the name of the table of topic locks in the schema of an outbox."""
    return TableName(table="kafka_topic_info", schema=outbox.schema)
