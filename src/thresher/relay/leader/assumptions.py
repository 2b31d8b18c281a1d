"""What a relay takes for granted about its database: seen to by a take-over, and watched for as long as it leads.

What breaks a guarantee raises. What merely differs from the table that we would make is returned, for the watch to tell
of what is new.
"""

from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseRefused
from thresher.db.shape_columns import mark_parts
from thresher.outbox.schema import check_relation
from thresher.relay.settings import Coordination, Delivery, Settings


def require_usable(session: StoreSession, settings: Settings) -> dict[str, str]:
    """Return what about the outbox differs, and how. Raises `DatabaseRefused` if the guarantees do not hold on it."""
    relation = session.relation()
    check = check_relation(relation, settings.outbox, settings.shape)
    if not check.usable:
        reasons = "; ".join(str(finding) for finding in check.findings if finding.severity == "breaks")
        raise DatabaseRefused(f"{settings.outbox} cannot serve as an outbox: {reasons}")
    mark = mark_parts(settings.shape)["mark"]
    marking = settings.delivery is Delivery.AT_LEAST_ONCE or settings.coordination is Coordination.TOPIC_LOCK
    if marking and relation is not None and mark not in relation.columns:
        raise DatabaseRefused(
            f"{settings.outbox} has no column {mark}, in which '{settings.mode}' marks rows: add it, as 'thresher "
            f"schema check' says, or choose '{Delivery.EXACTLY_ONCE}' with a leader"
        )
    return {f"outbox, {finding.subject}": finding.detail for finding in check.findings}
