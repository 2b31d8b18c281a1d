"""The progress topic of a relay, and the topics that its rows may not be sent to."""

from thresher.delivery.names import progress_topic
from thresher.delivery.progress_topic.progress_log import ProgressSource
from thresher.delivery.progress_topic.reserved_topics import ReservedTopics
from thresher.delivery.shard.recovery import KnownProgress
from thresher.relay.protocol.progress import Progress, decode, merged
from thresher.relay.settings import Settings, ShardAssignment


def progress_source(settings: Settings) -> ProgressSource[Progress]:
    """Return the relay's progress topic, and how it is read."""
    topic = progress_topic(settings.name)
    return ProgressSource(pipeline=settings.name, topic=topic, kafka=settings.kafka, decode=decode)


def known_progress(assignment: ShardAssignment) -> KnownProgress[Progress]:
    """Return the progress topic as the leader found it, for its shards."""
    return KnownProgress(
        source=progress_source(assignment.settings),
        topic_id=assignment.progress_topic_id,
        merged=merged,
    )


def reserved_topics(settings: Settings) -> ReservedTopics:
    """Return the check for topics that no row of this relay may be sent to."""
    return ReservedTopics(progress_topic(settings.name), settings.kafka)
