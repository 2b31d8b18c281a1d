"""Checks what a relay assumes about its outbox: in a take-over, and again and again while it leads.

A difference that breaks a guarantee raises an error. Any other difference from the table that Thresher would create is
returned, so that the watch can report new ones.
"""

from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseRefused
from thresher.db.shape_columns import mark_parts
from thresher.outbox.schema import check_relation
from thresher.relay.settings import Coordination, Delivery, Settings


def require_usable(session: StoreSession, settings: Settings) -> dict[str, str]:
    """Return the harmless differences of the outbox. Raises `DatabaseRefused` if one of them breaks a guarantee."""
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
