"""The progress topic of a pipeline that takes over: made where it never had one; another one's is refused."""

from thresher.db.control import ControlRow
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.progress_topic.progress_log import P, ProgressSource
from thresher.delivery.progress_topic.topic import KEPT, broker_explained, known_topic, require_kept
from thresher.kafka.admin import Admin, TopicFacts

# Its age is the broker's word: the clock of a pipeline's machine may be wrong.
_TOPIC_CONFIG = {**KEPT, "message.timestamp.type": "LogAppendTime"}


def own_topic(admin: Admin, source: ProgressSource[P], row: ControlRow, *, partitions: int) -> TopicFacts:
    """Return the progress topic, made if this pipeline never had one; another one under its name is refused."""
    name = source.topic
    if row.progress_topic_id is None:
        with broker_explained():
            if admin.topic(name) is None:
                admin.create_topic(name, partitions=partitions, config=_TOPIC_CONFIG)
    found = known_topic(admin, name, row.progress_topic_id, pipeline=source.pipeline)
    require_kept(admin, name)
    ours, theirs = False, ""
    for partition in range(found.partitions):
        # Before anything is fenced: the rightful owner must not notice.
        with source.log(source.seal(row.secret, partition), row.outbox_id) as log:
            ours |= log.last() is not None
        if log.other_outbox is not None:
            theirs = f"belongs to another outbox ({log.other_outbox}, this is {row.outbox_id})"
        elif log.strangers:
            theirs = theirs or "holds records that no relay wrote"
    # A topic that this pipeline has had is its own, whatever others have written to it.
    if theirs and not ours and row.progress_topic_id is None:
        raise ForeignProgress(
            f"the progress topic {name} {theirs}: it must be the relay's alone, and two outboxes on one broker need "
            "different names"
        )
    return found
