"""Columns that every shape has under another name or type: the SQL text for each.

Deimos' `created_at` has no time zone, and Rails writes UTC to it. Deimos' `session_id` is a text; like our `leader_id`,
it names the leader that has marked a row.
"""

from thresher.db.shape import Shape


def created(shape: Shape, row: str) -> str:
    """Return the SQL expression for a row's create time with time zone. `row` is the row's alias in the statement."""
    return f"({row}.created_at AT TIME ZONE 'UTC')" if shape is Shape.DEIMOS else f"{row}.create_time"


def mark_parts(shape: Shape) -> dict[str, str]:
    """Return the column of the mark, the parameter `leader` cast to its type, and the condition for unstamped rows."""
    if shape is Shape.DEIMOS:
        return {"mark": "session_id", "leader": "%(leader)s::uuid::text", "unstamped": ""}
    # num_nulls instead of IS NULL: see relay_settle_stamp.
    unstamped = " AND num_nulls(o.dispatched_time) = 1" if shape is Shape.THRESHER else ""
    return {"mark": "leader_id", "leader": "%(leader)s::uuid", "unstamped": unstamped}


def further_columns(shape: Shape, row: str) -> str:
    """Return the columns that a head has in this shape alone, to be appended to a column list."""
    return f", {row}.partition_key" if shape is Shape.DEIMOS else ""
