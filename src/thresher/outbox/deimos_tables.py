"""Deimos' tables as its Rails migrations make them: what a check expects of them, and how to add what is missing.

`kafka_messages` is the outbox, under whatever name. `kafka_topic_info` is beside it, and is for locks of topics alone:
a relay reads and writes nothing in it.
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
# Only marks need it, which are at least once. Newer versions of Deimos make tables without it.
MARK: dict[str, Column] = {"session_id": Column(type="character varying")}
TOPIC_INFO: dict[str, Column] = {
    "topic": Column(type="character varying", not_null=True),
    "locked_by": Column(type="character varying"),
    "locked_at": Column(type=_TIME),
    "error": Column(type="boolean", not_null=True, default="false"),
    "retries": Column(type="integer", not_null=True, default="0"),
    "last_processed_at": Column(type=_TIME),
    "token": Column(type="bigint", not_null=True, default="0"),
}
# The fewest characters that do, where Rails may have set a limit: a topic's name, an id.
FEWEST_CHARACTERS = {"topic": 249, "session_id": 36, "locked_by": 36, "partition_key": 1}
# How a column is added that a table lacks.
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
    """Return the name of the table of topics' locks that is beside an outbox."""
    return TableName(table="kafka_topic_info", schema=outbox.schema)
