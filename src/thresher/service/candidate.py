"""A process as its election sees it: whether it leads, and which process does as far as that is known."""

from uuid import UUID

from thresher.election.leadership import Leadership


class Candidate:
    """One process that competes, or is about to."""

    _leadership: Leadership | None = None

    @property
    def leader_id(self) -> UUID | None:
        """The id of the leadership that is held now; None for a standby."""
        leadership = self._leadership
        return None if leadership is None else leadership.leader_id

    @property
    def leader(self) -> str | None:
        """Which process leads, for people, as far as a standby's election tells it."""
        return getattr(self._leadership, "leader", None)
