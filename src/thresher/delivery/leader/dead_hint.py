"""The command that shows an outbox's dead rows, for the log."""

import shlex

from thresher.db import TableName
from thresher.db.shape import Shape


def dead_command(outbox: TableName, shape: Shape, *words: str) -> str:
    """Return 'thresher dead' with these words and the options that name the outbox, but not the database.

    A connection string may hold a password, which must not be logged.
    """
    named = ["--outbox", outbox.table] if outbox.table != "outbox" else []
    if outbox.schema is not None:
        named += ["--schema", outbox.schema]
    if shape is not Shape.THRESHER:
        named += ["--shape", shape.value]
    return shlex.join(["thresher", "dead", *words, *named])
