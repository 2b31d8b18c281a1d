"""What can go wrong between relays. Each class says by its type whether a retry can help."""

from thresher.core.errors import PipelineProblem, Trouble


class OtherCoordination(PipelineProblem):
    """The outbox is relayed in the other way: by a leader, or by topic locks."""


class OtherSplit(PipelineProblem):
    """A topic is locked in another number of parts than this relay was told."""


class TopicBusy(Trouble):
    """A topic's lock was not to be had in time."""
