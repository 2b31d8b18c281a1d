"""The errors between relays of one outbox. A retry can help against a `Trouble`; for any other, somebody has to act."""

from thresher.core.errors import PipelineProblem, Trouble


class OtherCoordination(PipelineProblem):
    """The outbox is read in another way: by a leader's relay, by topic locks, or by a tail."""


class OtherSplit(PipelineProblem):
    """A topic is locked in another number of parts than this relay's `split_topics` says."""


class TopicBusy(Trouble):
    """A topic's lock could not be taken in time."""
