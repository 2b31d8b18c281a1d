"""The columns that statements of every shape name: what each shape calls them, and how they are compared.

Deimos' `created_at` has no time zone, and Rails writes UTC to it. Deimos' `session_id` is a text, and tells, as our
`leader_id` does, by whom a row is taken.
"""

from thresher.db.shape import Shape


def created(shape: Shape, row: str) -> str:
    """Return the create time of a row that a statement calls so, as a moment."""
    return f"({row}.created_at AT TIME ZONE 'UTC')" if shape is Shape.DEIMOS else f"{row}.create_time"


def mark_parts(shape: Shape) -> dict[str, str]:
    """Return the column of the mark, the parameter `leader` as a value of that column, and what leaves stamped rows."""
    if shape is Shape.DEIMOS:
        return {"mark": "session_id", "leader": "%(leader)s::uuid::text", "unstamped": ""}
    # Not IS NULL, as in relay_settle_stamp.
    unstamped = " AND num_nulls(o.dispatched_time) = 1" if shape is Shape.THRESHER else ""
    return {"mark": "leader_id", "leader": "%(leader)s::uuid", "unstamped": unstamped}


def further_columns(shape: Shape, row: str) -> str:
    """Return the columns of a head beyond those that all shapes have, for a list of columns."""
    return f", {row}.partition_key" if shape is Shape.DEIMOS else ""
