"""What a Kafka error is about: one row, one topic, the client as a whole, or the moment."""

import enum

from confluent_kafka import KafkaError, KafkaException


class Refusal(enum.Enum):
    """Who has to change for it to work."""

    ROW = "row"
    """The record: it is not what the topic takes."""

    SIZE = "size"
    """The record: it is too large, by itself or together with others."""

    TIME = "time"
    """The record's time: its own, or what a clock gave it."""

    TOPIC = "topic"
    """The topic: it is not there."""

    TOPIC_DENIED = "topic-denied"
    """The topic: it is not ours to write to."""

    CLIENT = "client"
    """The client: its credentials, its permissions, or what it asks for."""

    NEIGHBOUR = "neighbour"
    """Another record of the transaction, which takes all of them along."""

    FENCED = "fenced"
    """The producer: another one with its transactional id has taken over, or it can do nothing any more."""

    MOMENT = "moment"
    """Nothing: later it may work."""


_KINDS: dict[int, Refusal] = {
    **dict.fromkeys(
        (KafkaError._FENCED, KafkaError._FATAL, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED),
        Refusal.FENCED,
    ),
    **dict.fromkeys(
        (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE), Refusal.SIZE
    ),
    **dict.fromkeys(
        (
            KafkaError.INVALID_RECORD,
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.POLICY_VIOLATION,
            KafkaError._INVALID_ARG,
        ),
        Refusal.ROW,
    ),
    KafkaError.INVALID_TIMESTAMP: Refusal.TIME,
    # A partition that is not there is what a client says of a topic that went away under its records.
    **dict.fromkeys(
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION), Refusal.TOPIC
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Refusal.TOPIC_DENIED,
    **dict.fromkeys(
        (
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
            KafkaError._STATE,
            KafkaError._INVALID_DIFFERENT_RECORD,
        ),
        Refusal.NEIGHBOUR,
    ),
    **dict.fromkeys(
        (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
            KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            KafkaError.UNSUPPORTED_VERSION,
            KafkaError._UNSUPPORTED_FEATURE,
        ),
        Refusal.CLIENT,
    ),
}


_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


def fenced(error: BaseException | None) -> bool:
    """Whether the broker's epoch stopped a producer. That does not prove a successor: a time-out looks the same."""
    while error is not None:
        if isinstance(error, KafkaException) and error.args[0].code() in _FENCED:
            return True
        error = error.__cause__
    return False


def refusal_of(error: KafkaError) -> Refusal:
    """Judge an error by its code; what is not known may pass."""
    return _KINDS.get(error.code(), Refusal.MOMENT)
