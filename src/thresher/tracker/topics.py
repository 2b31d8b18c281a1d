"""Judges the topics that a tracker's promise rests on, before it takes over and while it leads."""

from confluent_kafka import KafkaException

from thresher.kafka.admin import Admin
from thresher.kafka.problem import broker_problem
from thresher.queue.problem import TopicsUnsuitable
from thresher.queue.topics import await_topics
from thresher.tracker.settings import TrackerSettings


def require_suitable(settings: TrackerSettings) -> int:
    """Return for how many milliseconds markers are kept; negative: for ever.

    Raises `TopicsUnsuitable` where a topic is missing, or would lose markers or dead letters; `BrokerLost`.
    """
    admin = Admin.of(settings.kafka)
    try:
        await_topics(admin, [settings.message_topic, settings.marker_topic, settings.dead_topic])
        markers, dead = (admin.topic_config(name) for name in (settings.marker_topic, settings.dead_topic))
    except KafkaException as error:
        raise broker_problem("the topics of the queues could not be judged", error.args[0]) from error
    marker_topic, dead_topic = settings.marker_topic, settings.dead_topic
    for topic, setting, given, wanted, why in (
        (marker_topic, "message.timestamp.type", markers, "LogAppendTime", "the tracker's clock is the broker's"),
        (marker_topic, "cleanup.policy", markers, "delete", "all markers of a queue but one would be removed"),
        (marker_topic, "retention.bytes", markers, "-1", "a burst would remove markers that are needed"),
        (dead_topic, "cleanup.policy", dead, "compact", "dead letters would be removed by time"),
    ):
        if given[setting] != wanted:
            raise TopicsUnsuitable(
                f"{setting} of {topic} is {given[setting]}: {why}; set it to {wanted} and see what "
                "'thresher queue init' says of the rest"
            )
    return int(markers["retention.ms"])
