"""Finds the progress topic in a take-over: makes it if the pipeline never had one, refuses another outbox's topic."""

from thresher.db.control import ControlRow
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.progress_topic.progress_log import P, ProgressSource
from thresher.delivery.progress_topic.topic import KEPT, broker_explained, known_topic, require_kept
from thresher.kafka.admin import Admin, TopicFacts

# The broker dates the records, because the clock of a pipeline's machine may be wrong.
_TOPIC_CONFIG = {**KEPT, "message.timestamp.type": "LogAppendTime"}


def own_topic(admin: Admin, source: ProgressSource[P], row: ControlRow, *, partitions: int) -> TopicFacts:
    """Return the progress topic; make it if this pipeline never had one. Raises `ForeignProgress` if it is not ours."""
    name = source.topic
    if row.progress_topic_id is None:
        with broker_explained():
            if admin.topic(name) is None:
                admin.create_topic(name, partitions=partitions, config=_TOPIC_CONFIG)
    found = known_topic(admin, name, row.progress_topic_id, pipeline=source.pipeline)
    require_kept(admin, name)
    ours = theirs = False
    for partition in range(found.partitions):
        # Read before anything is fenced: if the topic is another outbox's, its relay must not be disturbed.
        with source.log(source.seal(row.secret, partition)) as log:
            ours |= log.last() is not None
        theirs |= log.foreign_records > 0
    # A topic that the control row knows is ours, whatever others have written to it.
    if theirs and not ours and row.progress_topic_id is None:
        raise ForeignProgress(
            f"the progress topic {name} holds records that this outbox's relay did not write: it must be the relay's "
            "alone, and two outboxes on one broker need different names"
        )
    return found
